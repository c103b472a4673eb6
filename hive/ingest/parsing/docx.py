"""Word documents: paragraphs by heading style, tables row by row."""

import io
import re
import zipfile
from collections.abc import Iterator
from typing import Any

import docx
from docx.opc.constants import RELATIONSHIP_TYPE
from docx.opc.exceptions import OpcError
from docx.table import Table
from docx.text.paragraph import Paragraph

from hive.ingest.connectors.port import Section
from hive.ingest.parsing.cleaning import SEPARATOR, one_line, tidy, under_title
from hive.ingest.parsing.html_tree import XmlError
from hive.ingest.parsing.parsed import Parsed, ParseFailure

MAX_UNPACKED_BYTES = 200 * 1024 * 1024
MAX_XML_BYTES = 40 * 1024 * 1024  # an element tree weighs many times its text
MAX_RATIO = 200
MAX_PARTS = 10_000

_COMPOUND_FILE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_HEADING = re.compile(r"heading (\d)", re.IGNORECASE)
_BROKEN = (
    OpcError,
    zipfile.BadZipFile,
    XmlError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    NotImplementedError,
    RecursionError,
    OSError,
    EOFError,
)


def parse_docx(data: bytes, name: str) -> Parsed:
    """Title (of its properties, its Title paragraph or first heading) and sections. Raises ParseFailure."""
    if data.startswith(_COMPOUND_FILE):
        raise ParseFailure("encrypted", "the document is protected by a password, or in the old .doc format")
    _refuse_bomb(data)
    try:
        document: Any = docx.Document(io.BytesIO(data))
        title, first, sections = _sections(document)
        title = title or one_line(_title_property(document), 300) or first
    except _BROKEN as error:
        reason = one_line(str(error)) or type(error).__name__
        raise ParseFailure("unparsable", f"not readable as a Word document: {reason}") from error
    if not sections:
        raise ParseFailure("empty", "the document has no text")
    return Parsed(title=title or name, sections=under_title(sections, title, first))


def _refuse_bomb(data: bytes) -> None:
    """zipfile reads no more of a part than its directory declares, so the declared sizes bound the memory."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, EOFError, NotImplementedError) as error:
        raise ParseFailure(
            "unparsable", f"not readable as a Word document: {one_line(str(error))}"
        ) from error
    unpacked = sum(part.file_size for part in parts)
    xml = sum(part.file_size for part in parts if part.filename.lower().endswith((".xml", ".rels")))
    ratio = unpacked / max(1, len(data))
    if (
        len(parts) > MAX_PARTS
        or xml > MAX_XML_BYTES
        or unpacked > MAX_UNPACKED_BYTES
        or (unpacked > 10_000_000 and ratio > MAX_RATIO)
    ):
        raise ParseFailure("too_large", f"the document unpacks to {unpacked:,} bytes in {len(parts)} parts")
    if any(part.flag_bits & 1 for part in parts):
        raise ParseFailure("encrypted", "the document is protected by a password")


def _title_property(document: Any) -> str:
    try:
        document.part.package.part_related_by(RELATIONSHIP_TYPE.CORE_PROPERTIES)
    except KeyError:
        return ""  # python-docx would make properties up, with a title of its own
    return document.core_properties.title or ""


def _sections(document: Any) -> tuple[str, str, list[Section]]:
    """The text of its Title paragraph, its first heading, and the sections."""
    sections: list[Section] = []
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    title = first = ""

    def flush() -> None:
        if body := tidy("\n".join(lines)):
            sections.append(Section(body=body, heading=SEPARATOR.join(step for _, step in path)))
        lines.clear()

    for block in document.iter_inner_content():
        if isinstance(block, Table):
            lines.extend(("", *_rows(block), ""))
            continue
        text, style = _paragraph(block)
        level = _HEADING.match(style)
        if style == "Title" and text and not title:
            title = one_line(text, 300)
        elif level and text.strip():
            flush()
            while path and path[-1][0] >= int(level.group(1)):
                path.pop()
            path.append((int(level.group(1)), one_line(text)))
            first = first or path[-1][1]
        elif style.startswith("List"):
            lines.append(f"- {text}")
        else:
            lines.extend((text, ""))
    flush()
    if not sections and (title or first):
        sections.append(Section(body=title or first))
    return title, first, sections


def _paragraph(paragraph: Paragraph) -> tuple[str, str]:
    style: Any = paragraph.style
    return paragraph.text, (style.name or "") if style is not None else ""


def _rows(table: Table) -> Iterator[str]:
    for row in table.rows:
        cells: list[str] = []
        before: Any = None
        for cell in row.cells:
            inner: Any = cell._tc  # pyright: ignore[reportPrivateUsage]  # merged cells come once per column
            if inner is not before:
                cells.append(" ".join(cell.text.split()))
            before = inner
        if any(cells):
            yield " | ".join(cells)
