"""Chooses the parser for a document, bounds its time, and turns every way of failing into a ParseFailure."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from hive.ingest.parsing.cleaning import one_line
from hive.ingest.parsing.docx import parse_docx
from hive.ingest.parsing.html import PageLinks, page_links, parse_html, parse_tree
from hive.ingest.parsing.html_tree import load
from hive.ingest.parsing.markdown import parse_markdown
from hive.ingest.parsing.parsed import MAX_TEXT_CHARACTERS, Parsed, ParseFailure
from hive.ingest.parsing.pdf import parse_pdf
from hive.ingest.parsing.text import parse_rst, parse_text

# By the end of the name. What is not here is read only when a pattern asks for it, and then as text.
FORMATS = {
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".md": "markdown",
    ".markdown": "markdown",
    ".txt": "text",
    ".text": "text",
    ".rst": "rst",
    ".pdf": "pdf",
    ".docx": "docx",
}
CONTENT_TYPES = {
    "text/html": "html",
    "application/xhtml+xml": "html",
    "text/markdown": "markdown",
    "text/x-markdown": "markdown",
    "text/plain": "text",
    "text/x-rst": "rst",
    "application/pdf": "pdf",
    "application/vnd.openxmlformats-officedocument.wordprocessingml.document": "docx",
}
CPU_SECONDS = 60.0


class _OutOfTime(BaseException):
    """Raised by the timer inside a parser; a BaseException, so that no ``except Exception`` there eats it."""


def format_of(name: str, content_type: str = "") -> str | None:
    """The format by content type (which wins, unless vague), else by the name's end; None if unknown."""
    by_name = FORMATS.get(PurePosixPath(name.lower()).suffix)
    if name.lower().endswith(".rst.txt"):
        by_name = "rst"
    kind = content_type.partition(";")[0].strip().lower()
    if kind in ("", "application/octet-stream", "binary/octet-stream"):
        return by_name
    if kind == "text/plain":
        return by_name if by_name in ("markdown", "rst") else "text"
    return CONTENT_TYPES.get(kind)


def read(data: bytes, name: str, *, kind: str | None = None, charset: str | None = None) -> Parsed:
    """``data`` as title and sections. ``name``: the file's; it chooses the parser, and may serve as title.

    ``kind``: one of FORMATS' values, if known from elsewhere. Bounded to ``CPU_SECONDS`` of processor time.
    Raises ParseFailure: binary, empty, encrypted, unparsable, too_large, timeout.
    """
    title = one_line(name) or "untitled"
    if not data.strip():
        raise ParseFailure("empty", "the document is empty")
    with _bounded():
        return _checked(_parse(data, title, kind or format_of(name) or "text", charset))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A web page: its links, also where its text cannot be had. ``content`` says which of the two it is."""

    links: PageLinks
    content: Parsed | ParseFailure


def read_page(data: bytes, name: str, *, charset: str | None = None) -> Page:
    """An HTML page with its links.

    Bounded as ``read``; raises ParseFailure when not even links can be had.
    """
    with _bounded():
        root = load(data, charset=charset)
        links = page_links(root)
        try:
            content = _checked(parse_tree(root, one_line(name) or "untitled"))
        except ParseFailure as failure:
            return Page(links=links, content=failure)
        return Page(links=links, content=content)


def _checked(parsed: Parsed) -> Parsed:
    if parsed.empty:
        raise ParseFailure("empty", "the document has no text")
    if sum(len(section.body) for section in parsed.sections) > MAX_TEXT_CHARACTERS:
        raise ParseFailure(
            "too_large", f"the document has more than {MAX_TEXT_CHARACTERS:,} characters of text"
        )
    return parsed


@contextmanager
def _bounded() -> Generator[None]:
    """Time, memory and depth that run out are failures of this one document."""
    try:
        with _processor_time(CPU_SECONDS):
            yield
    except _OutOfTime as error:
        summary = f"parsing took more than {CPU_SECONDS:g} s of processor time"
        raise ParseFailure("timeout", summary) from error
    except MemoryError as error:
        raise ParseFailure("too_large", "parsing needs more memory than a fetch child may use") from error
    except RecursionError as error:
        raise ParseFailure("unparsable", "the document is nested too deeply") from error


def _parse(data: bytes, name: str, kind: str, charset: str | None) -> Parsed:
    match kind:
        case "html":
            return parse_html(data, name, charset=charset)
        case "markdown":
            return parse_markdown(data, name, charset=charset)
        case "rst":
            return parse_rst(data, name, charset=charset)
        case "pdf":
            return parse_pdf(data, name)
        case "docx":
            return parse_docx(data, name)
        case _:
            return parse_text(data, name, charset=charset)


@contextmanager
def _processor_time(seconds: float) -> Generator[None]:
    """End the block after that much of this process's processor time; a busy machine does not count."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals reach the main thread only; fetch children have no other
        return

    def expire(_number: int, _frame: Any) -> None:
        raise _OutOfTime

    before = signal.signal(signal.SIGVTALRM, expire)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)
