"""HTML becomes sections: the page's main part, cut at its headings and at an API reference's definitions."""

from dataclasses import dataclass
from typing import Self

from hive.ingest.parsing.cleaning import one_line, site_free_title, under_title
from hive.ingest.parsing.html_main import beside_main, main_part
from hive.ingest.parsing.html_text import Rendering, heading_text
from hive.ingest.parsing.html_tree import Element, load
from hive.ingest.parsing.parsed import Parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLinks:
    """What a crawler wants of a page beside its text."""

    hrefs: list[str]
    base: str | None
    canonical: str | None
    noindex: bool
    nofollow: bool

    @classmethod
    def none(cls) -> Self:
        """Of a document that is no page."""
        return cls(hrefs=[], base=None, canonical=None, noindex=False, nofollow=False)


def parse_html(data: bytes, name: str, *, charset: str | None = None) -> Parsed:
    """Title and sections of a page. Raises ParseFailure."""
    return parse_tree(load(data, charset=charset), name)


def parse_tree(root: Element, name: str) -> Parsed:
    """The same for a tree that ``load`` gave. The tree is left as it is."""
    page_title = one_line(root.findtext(".//title") or "", 300)
    main = main_part(root)
    rendering = Rendering()
    rendering.render(main)
    for block in beside_main(root, main):
        rendering.render(block)
    heading = _first_heading(main)
    title = site_free_title(page_title, heading) or name
    language = (root.get("lang") or "").strip()
    return Parsed(
        title=title,
        sections=under_title(rendering.sections, title, heading),
        metadata={"language": language[:20]} if language else {},
    )


def page_links(root: Element) -> PageLinks:
    """Links in document order, with the page's wishes about them."""
    directives: set[str] = set()
    for meta in root.iter("meta"):
        if (meta.get("name") or "").strip().lower() == "robots":
            directives.update(word.strip() for word in (meta.get("content") or "").lower().split(","))
    canonical = None
    for link in root.iter("link"):
        if "canonical" in (link.get("rel") or "").lower().split() and link.get("href"):
            canonical = link.get("href").strip()
            break
    base = next((element.get("href") for element in root.iter("base") if element.get("href")), None)
    return PageLinks(
        hrefs=[element.get("href").strip() for element in root.iter("a", "area") if element.get("href")],
        base=base,
        canonical=canonical,
        noindex=bool(directives & {"noindex", "none"}),
        nofollow=bool(directives & {"nofollow", "none"}),
    )


def _first_heading(main: Element) -> str:
    for tag in ("h1", "h2", "h3", "head"):  # the last: what trafilatura calls all of them
        for element in main.iter(tag):
            if text := heading_text(element):
                return text
    return ""
