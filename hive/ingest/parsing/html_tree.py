"""The boundary to lxml, which carries no types: bytes become an element tree."""

from typing import Any

import lxml.html
from lxml import etree as _etree  # pyright: ignore[reportAttributeAccessIssue]

from hive.ingest.parsing.cleaning import clean, one_line
from hive.ingest.parsing.encoding import decode, refuse_binary
from hive.ingest.parsing.parsed import ParseFailure

Element = Any  # an lxml element; what leaves hive.ingest.parsing is typed

etree: Any = _etree
XmlError: type[Exception] = etree.LxmlError


def load(data: bytes, *, charset: str | None = None) -> Element:
    """A page's element tree. ``charset``: what its server said. Raises ParseFailure."""
    refuse_binary(data)
    text = clean(decode(data, declared=charset, markup=True))
    if not text.strip():
        raise ParseFailure("empty", "the document is empty")
    # Bytes in a known encoding: lxml refuses text that carries a declaration of its own. huge_tree stays off:
    # libxml2 then bounds depth and sizes by itself; HTML has no external entities to load.
    parser: Any = lxml.html.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True
    )
    try:
        root: Element | None = etree.fromstring(text.encode("utf-8"), parser)
    except (XmlError, ValueError) as error:
        raise ParseFailure("unparsable", f"not readable as HTML: {one_line(str(error))}") from error
    if root is None:
        raise ParseFailure("empty", "the document has no content")
    return root
