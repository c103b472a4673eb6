"""Markdown: its text stays Markdown, cut at its headings, with the anchors that GitHub gives them."""

import re
from collections.abc import Sequence

from markdown_it import MarkdownIt
from markdown_it.token import Token

from hive.ingest.connectors.port import Section
from hive.ingest.parsing.cleaning import SEPARATOR, clean, one_line, tidy, under_title
from hive.ingest.parsing.parsed import Parsed
from hive.ingest.parsing.text import parse_text, read_text

_MAX_PARSED_CHARACTERS = 2_000_000  # beyond this it is data with a Markdown name: read as text
_BLOCKS = MarkdownIt("commonmark").disable("inline")  # blocks are enough to find headings
_INLINE = MarkdownIt("commonmark")
_FRONT_MATTER = re.compile(r"\A(---|\+\+\+)[ \t]*\n(.*?)\n\1[ \t]*(?:\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"""^title[ \t]*[:=][ \t]*(["']?)(.+?)\1[ \t]*$""", re.MULTILINE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_NOT_IN_SLUGS = re.compile(r"[^\w\- ]")
_EXPLICIT_ID = re.compile(r"\s*\{#([\w\-.:]+)[^}]*\}\s*$")


def parse_markdown(data: bytes, name: str, *, charset: str | None = None) -> Parsed:
    """Sections by heading; title: the front matter's, the first heading, or ``name``. Raises ParseFailure."""
    text = clean(read_text(data, charset=charset))
    if len(text) > _MAX_PARSED_CHARACTERS:
        return parse_text(data, name, charset=charset)
    title, text = _front_matter(text)
    lines = text.split("\n")
    sections: list[Section] = []
    path: list[tuple[int, str, str]] = []
    anchors: dict[str, int] = {}
    first, begin, heading_only = "", 0, ""

    def flush(end: int) -> None:
        body = tidy(_COMMENT.sub("", "\n".join(lines[begin:end]))) or heading_only
        if body:
            heading = SEPARATOR.join(step for _, step, _ in path)
            sections.append(
                Section(body=body, heading=heading, anchor=path[-1][2] if path else "", markdown=True)
            )

    for level, raw, start, end in _headings(text):
        deeper = bool(path) and level > path[-1][0]
        if deeper:
            heading_only = ""  # what stands below it carries it
        flush(start)
        while path and path[-1][0] >= level:
            path.pop()
        heading, anchor = _named(raw, anchors)
        begin, heading_only = end, heading
        if heading:
            path.append((level, heading, anchor))
            first = first or heading
    flush(len(lines))
    return Parsed(title=title or first or name, sections=under_title(sections, title or first, first))


def _front_matter(text: str) -> tuple[str, str]:
    found = _FRONT_MATTER.match(text)
    if found is None:
        return "", text
    title = _FRONT_TITLE.search(found.group(2))
    return (one_line(title.group(2), 300) if title else ""), text[found.end() :]


def _headings(text: str) -> list[tuple[int, str, int, int]]:
    """Level, raw text, first line and line after, of each heading outside of quotes, lists and code."""
    tokens: Sequence[Token] = _BLOCKS.parse(text)
    found: list[tuple[int, str, int, int]] = []
    for index, token in enumerate(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            found.append((int(token.tag[1:]), tokens[index + 1].content, token.map[0], token.map[1]))
    return found


def _named(raw: str, anchors: dict[str, int]) -> tuple[str, str]:
    """A heading's plain text and its anchor, unique within the page."""
    explicit = _EXPLICIT_ID.search(raw)
    if explicit:
        raw = raw[: explicit.start()]
    inline = _INLINE.parseInline(raw[:1000])
    pieces = [
        child.content if child.type in ("text", "code_inline") else " " if child.type == "softbreak" else ""
        for token in inline
        for child in token.children or ()
    ]
    heading = one_line("".join(pieces))
    if explicit:
        return heading, explicit.group(1)
    slug = _NOT_IN_SLUGS.sub("", heading.lower()).strip().replace(" ", "-")
    seen = anchors.get(slug, 0)
    anchors[slug] = seen + 1
    return heading, f"{slug}-{seen}" if seen else slug
