"""The boundary to lxml, which carries no types: bytes become an element tree."""

from typing import Any

import lxml.html
from lxml import etree as _etree  # pyright: ignore[reportAttributeAccessIssue]

from hive.ingest.parsing.cleaning import clean, one_line
from hive.ingest.parsing.encoding import decode, refuse_binary
from hive.ingest.parsing.parsed import ParseFailure

Element = Any  # an lxml element; what leaves hive.ingest.parsing is typed

etree: Any = _etree
# An element tree weighs about 25 times its text; a fetch child may use 1 GB.
MAX_HTML_BYTES = 20 * 1024 * 1024

XmlError: type[Exception] = etree.LxmlError


def load(data: bytes, *, charset: str | None = None) -> Element:
    """A page's element tree. ``charset``: what its server said. Raises ParseFailure."""
    if len(data) > MAX_HTML_BYTES:
        raise ParseFailure("too_large", f"HTML of more than {MAX_HTML_BYTES:,} bytes is not read")
    refuse_binary(data)
    text = clean(decode(data, declared=charset, markup=True))
    if not text.strip():
        raise ParseFailure("empty", "the document is empty")
    # Bytes in a known encoding: lxml refuses text that carries a declaration of its own. huge_tree allows a
    # depth of 2,048 instead of 256, and nothing worse: a document's size is bounded, HTML has no entities to
    # load.
    parser: Any = lxml.html.HTMLParser(
        encoding="utf-8", remove_comments=True, remove_pis=True, no_network=True, huge_tree=True
    )
    try:
        root: Element | None = etree.fromstring(text.encode("utf-8"), parser)
    except (XmlError, ValueError) as error:
        raise ParseFailure("unparsable", f"not readable as HTML: {one_line(str(error))}") from error
    if root is None:
        raise ParseFailure("empty", "the document has no content")
    if any("depth" in str(entry.message) for entry in parser.error_log.filter_from_fatals()):
        raise ParseFailure("unparsable", "the document is nested too deeply")
    _bring_in_latecomers(root)
    return root


def _bring_in_latecomers(root: Element) -> None:
    """What stands behind </html> belongs to the body, as in browsers. libxml2 makes a second root of it."""
    body = root.find("body")
    if body is None:
        return
    for late in list(root.itersiblings()):
        source = late.find("body") if late.find("body") is not None else late
        if source.text and source.text.strip():
            paragraph = etree.SubElement(body, "p")
            paragraph.text = source.text
        body.extend(list(source))
