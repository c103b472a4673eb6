"""A document's sections become chunks of bounded length, ready to be embedded.

    sections ─▶ cut what is too long ─▶ join what is too short with its neighbour ─▶ chunks

A chunk keeps the heading path and the anchor of its section. What was joined keeps the path that its sections
share; the rest of each path stands as a line of its own in the text, so that nothing is lost but white space.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from semantic_text_splitter import MarkdownSplitter, TextSplitter

from hive.ingest.connectors.port import Section, SourceDocument
from hive.ingest.fetching import Chunk
from hive.ingest.parsing.cleaning import SEPARATOR, clean

# The splitter is superlinear in a line's length (2 MB without a space: 46 s), so longer ones are cut first.
_MAX_LINE_CHARACTERS = 20_000
# A chunk below this share of the limit says too little by itself and is joined with a neighbour.
_SHORT_SHARE = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class _Piece:
    heading: tuple[str, ...]
    anchor: str
    body: str


def split(document: SourceDocument, *, chunk_characters: int, overlap: int) -> list[Chunk]:
    """The document's chunks in reading order, each nonempty and at most ``chunk_characters`` long.

    ``overlap``: characters that neighbours of one section may share. The same input gives the same chunks.
    """
    if not 0 <= overlap < chunk_characters:
        raise ValueError("overlap must be at least 0 and below chunk_characters")
    pieces: list[_Piece] = []
    for section in document.sections:
        pieces.extend(_cut(section, chunk_characters, overlap))
    return [
        Chunk(ordinal=ordinal, heading=SEPARATOR.join(piece.heading), anchor=piece.anchor, body=piece.body)
        for ordinal, piece in enumerate(_joined(pieces, chunk_characters))
    ]


def content_hash(document: SourceDocument, chunks: Sequence[Chunk]) -> str:
    """SHA-256, in hex, over what gets indexed: title, link, metadata, chunks; not over source_state."""
    content = [
        document.title,
        document.link,
        sorted(document.metadata.items()),
        [[chunk.heading, chunk.anchor, chunk.body] for chunk in chunks],
    ]
    return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode("ascii")).hexdigest()


def _cut(section: Section, limit: int, overlap: int) -> Iterator[_Piece]:
    heading = tuple(section.heading.split(SEPARATOR)) if section.heading else ()
    body = clean(section.body).strip()
    if not body:
        return
    if len(body) <= limit:
        yield _Piece(heading=heading, anchor=section.anchor, body=body)
        return
    splitter = _splitter(section.markdown, limit, overlap)
    for text in splitter.chunks(_short_lines(body)):
        if text := text.strip():
            yield _Piece(heading=heading, anchor=section.anchor, body=text)


@lru_cache(maxsize=8)
def _splitter(markdown: bool, limit: int, overlap: int) -> TextSplitter | MarkdownSplitter:
    return MarkdownSplitter(limit, overlap) if markdown else TextSplitter(limit, overlap)


def _short_lines(text: str) -> str:
    if len(text) <= _MAX_LINE_CHARACTERS:
        return text
    lines: list[str] = []
    for line in text.split("\n"):
        start = 0
        while len(line) - start > _MAX_LINE_CHARACTERS:
            end = start + _MAX_LINE_CHARACTERS
            space = line.rfind(" ", start + _MAX_LINE_CHARACTERS // 2, end)
            end = space if space > 0 else end
            lines.append(line[start:end])
            start = end
        lines.append(line[start:])
    return "\n".join(lines)


def _joined(pieces: Sequence[_Piece], limit: int) -> Iterator[_Piece]:
    """Neighbours joined while one of the two is short, they fit, and the document has them under one roof."""
    short = int(limit * _SHORT_SHARE)
    open_group: list[_Piece] = []
    merged: _Piece | None = None
    for piece in pieces:
        if merged is None:
            open_group, merged = [piece], piece
            continue
        if len(merged.body) < short or len(piece.body) < short:
            together = _merge([*open_group, piece])
            if _related(merged, piece) and len(together.body) <= limit:
                open_group.append(piece)
                merged = together
                continue
        yield merged
        open_group, merged = [piece], piece
    if merged is not None:
        yield merged


def _related(one: _Piece, other: _Piece) -> bool:
    """Whether they stand under the same heading, one under the other, or side by side below a common one."""
    if not one.heading or not other.heading:
        return True
    return one.heading[0] == other.heading[0]


def _merge(group: Sequence[_Piece]) -> _Piece:
    shared = _shared([piece.heading for piece in group])
    parts: list[str] = []
    before: tuple[str, ...] = shared
    for piece in group:
        own = piece.heading[len(shared) :]
        if own and piece.heading != before:
            title = SEPARATOR.join(own)
            if not piece.body.startswith(own[-1]):  # a definition begins with its own term
                parts.append(title)
            elif len(own) > 1:
                parts.append(SEPARATOR.join(own[:-1]))
        before = piece.heading
        parts.append(piece.body)
    return _Piece(heading=shared, anchor=group[0].anchor, body="\n\n".join(parts))


def _shared(paths: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    shared = paths[0]
    for path in paths[1:]:
        length = 0
        for one, other in zip(shared, path, strict=False):
            if one != other:
                break
            length += 1
        shared = shared[:length]
    return shared
