"""Plain text, and reStructuredText by its underlined headings."""

import re

from hive.ingest.connectors.port import Section
from hive.ingest.parsing.cleaning import SEPARATOR, one_line, tidy, under_title
from hive.ingest.parsing.encoding import decode, refuse_binary
from hive.ingest.parsing.parsed import Parsed

_ADORNMENT = re.compile(r"""([=\-~^"'`#*+.:_<>])\1{2,}\s*""")
_NOT_FOR_ANCHORS = re.compile(r"[^a-z0-9]+")


def read_text(data: bytes, *, charset: str | None = None) -> str:
    """The text of a file that claims to be text. Raises ParseFailure("binary")."""
    refuse_binary(data)
    return decode(data, declared=charset)


def parse_text(data: bytes, name: str, *, charset: str | None = None) -> Parsed:
    """One section; the file's name is the title, since a first line may be anything."""
    return Parsed(title=name, sections=[Section(body=tidy(read_text(data, charset=charset)))])


def parse_rst(data: bytes, name: str, *, charset: str | None = None) -> Parsed:
    """Sections by underlined headings; a style's level is the order of first appearance, as in docutils."""
    lines = tidy(read_text(data, charset=charset)).split("\n")
    sections: list[Section] = []
    path: list[tuple[int, str]] = []
    styles: list[str] = []
    body: list[str] = []
    first = ""

    def flush() -> None:
        if text := tidy("\n".join(body)):
            heading = SEPARATOR.join(step for _, step in path)
            sections.append(Section(body=text, heading=heading, anchor=_anchor(path[-1][1]) if path else ""))
        body.clear()

    number = 0
    while number < len(lines):
        title, style, taken = _heading_at(lines, number)
        if not taken:
            body.append(lines[number])
            number += 1
            continue
        flush()
        if style not in styles:
            styles.append(style)
        level = styles.index(style)
        while path and path[-1][0] >= level:
            path.pop()
        path.append((level, one_line(title)))
        first = first or path[-1][1]
        number += taken
    flush()
    if not sections and first:
        sections.append(Section(body=first))
    return Parsed(title=first or name, sections=under_title(sections, first, first))


def _heading_at(lines: list[str], number: int) -> tuple[str, str, int]:
    """Title, style and number of lines of the heading that begins here; 0 lines if none does."""

    def line(offset: int) -> str:
        return lines[number + offset] if number + offset < len(lines) else ""

    def adorns(candidate: str, title: str) -> bool:
        return bool(_ADORNMENT.fullmatch(candidate)) and len(candidate.rstrip()) >= len(title.rstrip())

    title = line(1).strip()
    if (
        title
        and adorns(line(0), title)
        and line(2).rstrip() == line(0).rstrip()
        and not _ADORNMENT.fullmatch(title)
    ):
        return title, "over" + line(0)[0], 3
    title = line(0)
    starts_block = number == 0 or not lines[number - 1].strip()
    plain = title.strip() and not title.startswith((" ", "\t")) and not _ADORNMENT.fullmatch(title)
    if starts_block and plain and adorns(line(1), title):
        return title.strip(), line(1)[0], 2
    return "", "", 0


def _anchor(heading: str) -> str:
    return _NOT_FOR_ANCHORS.sub("-", heading.lower()).strip("-")
