"""Which part of a page is its content, and which elements are never content."""

from copy import deepcopy
from typing import Any

import trafilatura

from hive.ingest.parsing.html_tree import Element

_NOT_CONTENT = """
    script style noscript template svg iframe object embed applet canvas audio video map nav dialog form input
    select button textarea datalist annotation title meta link base frameset
"""
_DROPPED_TAGS = frozenset(_NOT_CONTENT.split())
_TEXT_BLOCKS = ("p", "pre", "blockquote", "dl", "h1", "h2", "h3", "h4", "h5", "h6")
_CHROME_TAGS = frozenset(("header", "footer", "aside"))
_DROPPED_ROLES = frozenset(
    ("navigation", "search", "banner", "contentinfo", "menu", "menubar", "toolbar", "dialog")
)
_PERMALINK_CLASSES = frozenset(
    ("headerlink", "anchorjs-link", "hash-link", "header-anchor", "anchor-link", "permalink")
)
_PERMALINK_SIGNS = frozenset(("¶", "#", "§", "🔗", "", "\uf0c1"))
_ENOUGH_CHARACTERS = 200
_SHORT_PAGE_CHARACTERS = 1500


def dropped(element: Element, *, chrome: bool = False) -> bool:
    """Whether an element, with all below it, is not content. ``chrome``: nor are page headers and footers."""
    tag = element.tag
    if tag in _DROPPED_TAGS or (chrome and tag in _CHROME_TAGS):
        # A form around a whole page is a layout, not a form (ASP.NET).
        return tag != "form" or len(element.text_content()) < 2000
    attributes = element.attrib
    if not attributes:
        return False
    if "hidden" in attributes or attributes.get("aria-hidden") == "true":
        return True
    if (role := attributes.get("role")) and role in _DROPPED_ROLES:
        return True
    return tag == "a" and _is_permalink(element, attributes)


def _is_permalink(element: Element, attributes: Any) -> bool:
    if not attributes.get("href", "").startswith("#"):
        return False
    classes = attributes.get("class")
    if classes and not _PERMALINK_CLASSES.isdisjoint(classes.split()):
        return True
    return len(element) == 0 and (element.text or "").strip() in _PERMALINK_SIGNS


def main_part(root: Element) -> Element:
    """The element that holds the page's content: what the page marks as such, else what trafilatura finds.

    Returns an element of the tree, or a tree of its own.
    """
    for found in (root.xpath('//*[@role="main"]'), list(root.iter("main")), _only_article(root)):
        for element in found:
            if len(visible_text(element)) > 0:
                return element
    body = root.find("body")
    if body is None:
        body = root
    return _extracted(body, root)


def beside_main(root: Element, main: Element) -> list[Element]:
    """Text that stands right in the body, outside of the main part: whoever puts a paragraph there means it.

    Menus and footers come in wrappers of their own, and lists there are menus.
    """
    body = root.find("body")
    if body is None or main is body or next(main.iterancestors("body"), None) is not body:
        return []
    return [
        block
        for block in body.iterchildren(*_TEXT_BLOCKS)
        if block is not main
        and not dropped(block)
        and not any(each is main for each in block.iterdescendants())
    ]


def _only_article(root: Element) -> list[Element]:
    articles = [
        element for element in root.iter("article") if not any(True for _ in element.iterancestors("article"))
    ]
    return articles if len(articles) == 1 else []


def _extracted(body: Element, root: Element) -> Element:
    whole = visible_text(body, chrome=True)
    if len(whole) < _SHORT_PAGE_CHARACTERS:
        return _without_chrome(body)
    # Its answer is a tree of its own (p, head, list, table, code …) in TEI's words; rendering knows them.
    extraction: Any = trafilatura.bare_extraction(
        root, favor_recall=True, include_comments=False, include_tables=True, with_metadata=False
    )
    found: Element | None = getattr(extraction, "body", None)
    if found is None:
        return _without_chrome(body)
    size = len(" ".join(found.itertext()).strip())
    if size < max(_ENOUGH_CHARACTERS, 0.3 * len(whole)):
        return _without_chrome(body)
    _give_back_anchors(found, root)
    return found


def _without_chrome(body: Element) -> Element:
    """A copy of the body without headers, footers and asides; all of it, if nothing else is left."""
    copied = deepcopy(body)
    for element in list(copied.iter(*_CHROME_TAGS)):
        if element.tag == "header" and any(True for _ in element.iter("h1")):
            continue
        if element.getparent() is not None:
            element.drop_tree()
    return copied if visible_text(copied) else body


def _give_back_anchors(found: Element, root: Element) -> None:
    """trafilatura drops ids; a heading gets its own back by its text."""
    anchors: dict[str, str] = {}
    for element in root.iter("h1", "h2", "h3", "h4", "h5", "h6"):
        anchor = anchor_of(element)
        text = " ".join(visible_text(element).split())
        if anchor and text:
            anchors.setdefault(text, anchor)
    for element in found.iter("head"):
        anchor = anchors.get(" ".join("".join(element.itertext()).split()))
        if anchor:
            element.set("id", anchor)


def anchor_of(heading: Element) -> str:
    """The fragment that leads to a heading: its own id, its section's, or that of an anchor within it."""
    if own := heading.get("id"):
        return own
    parent = heading.getparent()
    if (
        parent is not None
        and parent.tag in ("section", "div", "article", "header")
        and (own := parent.get("id"))
    ):
        before = list(parent.iterchildren("h1", "h2", "h3", "h4", "h5", "h6"))
        if before and before[0] is heading:
            return own
    for element in heading.iter("a", "span"):
        if own := element.get("id") or element.get("name"):
            return own
    return ""


def visible_text(element: Element, *, chrome: bool = False) -> str:
    """The text below an element without what is dropped. Iterative: depth is the page author's choice."""
    parts: list[str] = []
    stack: list[tuple[Element, bool]] = [(element, False)]
    while stack:
        node, left = stack.pop()
        if left:
            if node.tail:
                parts.append(node.tail)
            continue
        if node is not element:
            stack.append((node, True))
            if not isinstance(node.tag, str) or dropped(node, chrome=chrome):
                continue
        if node.text:
            parts.append(node.text)
        stack.extend((child, False) for child in reversed(node))
    return "".join(parts).strip()
