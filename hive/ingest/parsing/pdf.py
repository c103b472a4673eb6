"""PDF: the text of its pages, each with the anchor that viewers open it by (``#page=3``)."""

import io
import logging

from pypdf import PdfReader
from pypdf.errors import DependencyError, PyPdfError

from hive.ingest.connectors.port import Section
from hive.ingest.parsing.cleaning import one_line, tidy
from hive.ingest.parsing.parsed import MAX_TEXT_CHARACTERS, Parsed, ParseFailure

MAX_PAGES = 10_000

logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # a file's flaws are its own; what matters is raised

# What pypdf raises on broken files beside its own errors: it follows what the file says.
_BROKEN = (
    PyPdfError,
    ValueError,
    TypeError,
    KeyError,
    IndexError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
    OSError,
)


def parse_pdf(data: bytes, name: str) -> Parsed:
    """Title (of the file's own information, or ``name``) and one section per page. Raises ParseFailure."""
    try:
        reader = PdfReader(io.BytesIO(data), strict=False)
        if reader.is_encrypted and not reader.decrypt(""):
            raise ParseFailure("encrypted", "the PDF is protected by a password")
        pages = len(reader.pages)
        if pages > MAX_PAGES:
            raise ParseFailure("too_large", f"the PDF has {pages} pages; {MAX_PAGES} are read at the most")
        sections = _pages(reader)
        title = _title(reader)
    except DependencyError as error:
        raise ParseFailure(
            "encrypted", f"the PDF's encryption is not supported: {one_line(str(error))}"
        ) from error
    except _BROKEN as error:
        raise ParseFailure(
            "unparsable", f"not readable as PDF: {one_line(str(error)) or type(error).__name__}"
        ) from error
    if not sections:
        raise ParseFailure("empty", "the PDF has no text (scanned pages, perhaps)")
    return Parsed(title=title or name, sections=sections)


def _pages(reader: PdfReader) -> list[Section]:
    sections: list[Section] = []
    total = 0
    for number, page in enumerate(reader.pages, start=1):
        text = tidy(page.extract_text())
        total += len(text)
        if total > MAX_TEXT_CHARACTERS:
            raise ParseFailure(
                "too_large", f"the PDF has more than {MAX_TEXT_CHARACTERS:,} characters of text"
            )
        if text:
            sections.append(Section(body=text, anchor=f"page={number}"))
    return sections


def _title(reader: PdfReader) -> str:
    information = reader.metadata
    title = one_line(information.title or "", 300) if information else ""
    # Word processors leave their working titles here.
    return "" if title.lower().startswith(("microsoft word", "untitled", "slide 1")) else title
