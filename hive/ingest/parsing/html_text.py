"""An element tree becomes text that keeps its structure: headings, paragraphs, lists, tables, terms, code.

One walk, no recursion. It knows HTML's element names and the TEI names that trafilatura answers in.
"""

import re
from dataclasses import dataclass

from hive.ingest.connectors.port import Section
from hive.ingest.parsing.cleaning import SEPARATOR, one_line, tidy
from hive.ingest.parsing.html_main import anchor_of, dropped, visible_text
from hive.ingest.parsing.html_tree import Element, etree

HEADINGS = {"h1": 1, "h2": 2, "h3": 3, "h4": 4, "h5": 5, "h6": 6, "head": 2}
_DEFINITION_LEVEL = 10  # below any heading; nested definitions lie deeper
_PARAGRAPH_TAGS = """
    p blockquote pre table ul ol dl figure fieldset details hr quote list section article header footer main
"""
_LINE_TAGS = "div li item tr row dt dd caption summary figcaption address option legend br lb body"
_PARAGRAPHS = frozenset(_PARAGRAPH_TAGS.split())
_LINES = frozenset(_LINE_TAGS.split())
_CELLS = frozenset(("td", "th", "cell"))
_LISTS = frozenset(("ul", "ol", "list"))
_ITEMS = frozenset(("li", "item"))
_TIGHT_IN_LISTS = _LISTS | {"p"}
_LONG_TERM_CHARACTERS = 60
_BLOCKS_IN_CELLS = (*HEADINGS, "pre", "ul", "ol", "dl", "table", "list")
_SPACE = re.compile(r"\s+")
_TWO_LETTERS = re.compile(r"[^\W\d_].*[^\W\d_]", re.DOTALL)


def heading_text(element: Element) -> str:
    """A heading on one line, without its permalink sign."""
    return one_line(visible_text(element)).rstrip("¶#").rstrip()


@dataclass(slots=True, kw_only=True)
class _Heading:
    level: int
    text: str
    anchor: str
    used: bool = False


class Rendering:
    """Renders a tree; ``sections`` holds what came of it."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._path: list[_Heading] = []
        self._parts: list[str] = []
        self._break = 0  # line feeds owed before the next text
        self._line_start = True
        self._marker = ""  # of the list item that has no text yet
        self._pre: list[Element] = []
        self._tables: list[bool] = []  # True: its cells hold mere text, so a row is a line
        self._in_line_cell = False
        self._lists: list[int] = []  # the next number of an ordered list; 0: a plain one
        self._definitions = 0

    def render(self, root: Element) -> None:
        """Walk ``root`` and all below it."""
        walk = etree.iterwalk(root, events=("start", "end", "comment", "pi"))
        skipped: Element | None = None
        for event, element in walk:
            if event == "start":
                if (element is not root and dropped(element)) or self._enter(element):
                    skipped = element
                    walk.skip_subtree()
                elif element.text:
                    self._text(element.text)
                continue
            if event == "end" and element is not skipped:
                self._leave(element)
            skipped = None
            if element is not root and element.tail:
                self._text(element.tail)
        self._close_headings(0)

    def _enter(self, element: Element) -> bool:
        """Open an element. True: its text is taken already, so what is below it is skipped."""
        tag = element.tag
        if tag in HEADINGS:
            self._open_heading(_level(element), heading_text(element), anchor_of(element))
            return True
        if tag in _PARAGRAPHS:
            self._want(1 if self._lists and tag in _TIGHT_IN_LISTS else 2)
        elif tag in _LINES:
            self._want(1)
        if tag in _CELLS:
            self._enter_cell()
        elif tag in _LISTS:
            self._lists.append(1 if "ol" in (tag, element.get("rend")) else 0)
        elif tag in _ITEMS:
            self._enter_item()
        elif _preformatted(element):
            self._pre.append(element)
        elif tag == "table":
            self._tables.append(all(found is element for found in element.iter(*_BLOCKS_IN_CELLS)))
        elif tag == "dl":
            self._definitions += 1
        elif tag == "dt":
            self._enter_term(element)
        return False

    def _leave(self, element: Element) -> None:
        tag = element.tag
        if tag in _CELLS:
            self._in_line_cell = False
        elif tag in _LISTS:
            self._lists.pop()
            self._marker = ""
        elif self._pre and element is self._pre[-1]:
            self._pre.pop()
        elif tag == "table":
            self._tables.pop()
        elif tag == "dl":
            self._close_headings(_DEFINITION_LEVEL + self._definitions)
            self._definitions -= 1
        if tag in _PARAGRAPHS:
            self._want(1 if self._lists and tag in _TIGHT_IN_LISTS else 2)
        elif tag in _LINES:
            self._want(1)

    def _enter_cell(self) -> None:
        if not self._tables or not self._tables[-1]:
            self._want(1)
            return
        if self._parts and not self._break:
            self._parts.append(" | ")
            self._line_start = True  # no further space before the cell's text
        self._in_line_cell = True

    def _enter_item(self) -> None:
        number = self._lists[-1] if self._lists else 0
        if number:
            self._lists[-1] += 1
        self._marker = f"{number}. " if number else "- "

    def _enter_term(self, element: Element) -> None:
        """A term that can be linked to (a function in a reference, a glossary's entry) heads a section."""
        anchor = element.get("id") or ""
        before = element.getprevious()
        if not anchor or (before is not None and before.tag == "dt"):
            return  # the second of two terms with one definition belongs to the first
        text = heading_text(element)
        if (
            len(text) > _LONG_TERM_CHARACTERS
        ):  # a signature: its name is enough, the arguments stand in the text
            text = text.partition("(")[0].rstrip() or text
        if _TWO_LETTERS.search(text):
            self._open_heading(_DEFINITION_LEVEL + self._definitions, text, anchor)
            self._path[-1].used = True  # the term is the first line of its section

    def _open_heading(self, level: int, text: str, anchor: str) -> None:
        if text:
            self._close_headings(level)
            self._path.append(_Heading(level=level, text=text, anchor=anchor))

    def _close_headings(self, level: int) -> None:
        """End the running section, and every heading at ``level`` or below."""
        self._flush()
        while self._path and self._path[-1].level >= level:
            heading = self._path[-1]
            if not heading.used:  # nothing stood under it: the heading itself is the text
                self._add(heading.text)
            self._path.pop()

    def _flush(self) -> None:
        body = tidy("".join(self._parts))
        self._parts.clear()
        self._break, self._line_start, self._marker = 0, True, ""
        if body:
            self._add(body)

    def _add(self, body: str) -> None:
        for heading in self._path:
            heading.used = True
        self.sections.append(
            Section(
                body=body,
                heading=SEPARATOR.join(heading.text for heading in self._path),
                anchor=self._path[-1].anchor if self._path else "",
            )
        )

    def _want(self, line_feeds: int) -> None:
        if self._pre:
            return  # its own line ends count
        if self._in_line_cell:
            self._text(" ")
            return
        self._break = max(self._break, line_feeds)

    def _text(self, text: str) -> None:
        if self._pre:
            self._write(text)
            return
        text = _SPACE.sub(" ", text)
        if self._line_start or self._break:
            text = text.lstrip(" ")
        if text:
            self._write(text)

    def _write(self, text: str) -> None:
        if self._break:
            if self._parts:
                self._parts.append("\n" * self._break)
            self._break = 0
        if self._marker:
            self._parts.append("  " * max(0, len(self._lists) - 1) + self._marker)
            self._marker = ""
        self._parts.append(text)
        self._line_start = text.endswith((" ", "\n"))


def _level(heading: Element) -> int:
    rend = heading.get("rend") or ""  # trafilatura: <head rend="h3">
    return HEADINGS.get(rend) or HEADINGS[heading.tag]


def _preformatted(element: Element) -> bool:
    return element.tag == "pre" or (element.tag == "code" and element.find("lb") is not None)
