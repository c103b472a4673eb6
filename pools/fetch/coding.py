"""The values of ``hive.ingest.fetching`` as frames, both ways.

A batch travels as DOCUMENT, CHUNKS, CHUNKS, … DOCUMENT, … BATCH: no frame much above ``PART_BYTES``, so that
decoding one never holds the parent's loop for long (JSON decodes at roughly 100 MB/s).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final, assert_never, cast

from hive.ingest.fetching import (
    BatchReady,
    CheckpointReached,
    Chunk,
    DocumentFailed,
    FetchDone,
    FetchFailed,
    FetchRequest,
    Frame,
    ParsedDocument,
    Progressed,
    Question,
)
from pools.fetch.frames import Framed, FrameError, Json, Kind, encode, pack, pack_encoded

PART_BYTES: Final = 256 * 1024
MAX_BATCH_BYTES: Final = 256 * 1024 * 1024  # of one batch's frames; a child that goes on and on is an error
SUMMARY_CHARACTERS: Final = 500


def request_frame(request: FetchRequest, connector: str | None) -> bytes:
    """The first frame of a fetch child. ``connector``: "module:Class" for kinds outside the catalogue."""
    return pack(Kind.REQUEST, {"request": asdict(request), "connector": connector})


def read_request(payload: Json) -> tuple[FetchRequest, str | None]:
    """The other side of ``request_frame``. Raises FrameError."""
    try:
        return FetchRequest(**payload["request"]), payload["connector"]
    except (TypeError, KeyError) as error:
        raise FrameError(f"a REQUEST frame lacks something: {error}") from None


def answer_frame(known: Mapping[str, Mapping[str, Json]]) -> bytes:
    """The parent's answer to a Question. Raises FrameError when it is too large."""
    return pack(Kind.ANSWER, dict(known))


class EncodedDocument:
    """A document, encoded once: its size decides which batch it goes into."""

    __slots__ = ("frames", "size")

    def __init__(self, document: ParsedDocument) -> None:
        self.frames = tuple(_document_frames(document))
        self.size = sum(map(len, self.frames))


def _document_frames(document: ParsedDocument) -> Iterator[bytes]:
    yield pack(
        Kind.DOCUMENT,
        {
            "source_id": document.source_id,
            "title": document.title,
            "link": document.link,
            "revision": document.revision,
            "content_hash": document.content_hash,
            "source_state": dict(document.source_state),
            "metadata": dict(document.metadata),
        },
    )
    part: list[bytes] = []
    size = 0
    for chunk in document.chunks:
        encoded = encode([chunk.ordinal, chunk.heading, chunk.anchor, chunk.body])
        if part and size + len(encoded) > PART_BYTES:
            yield pack_encoded(Kind.CHUNKS, b"[" + b",".join(part) + b"]")
            part, size = [], 0
        part.append(encoded)
        size += len(encoded) + 1
    if part:
        yield pack_encoded(Kind.CHUNKS, b"[" + b",".join(part) + b"]")


def batch_end_frame(
    count: int, failures: Sequence[DocumentFailed], checkpoint: Json | None, unchanged: int
) -> bytes:
    """The frame that ends a batch of ``count`` documents."""
    return pack(
        Kind.BATCH,
        {
            "count": count,
            "failures": [asdict(failure) for failure in failures],
            "checkpoint": checkpoint,
            "unchanged": unchanged,
        },
    )


def frames_of(frame: Frame) -> Iterator[bytes]:
    """``frame`` as bytes, in order."""
    match frame:
        case BatchReady():
            for document in frame.documents:
                yield from EncodedDocument(document).frames
            yield batch_end_frame(len(frame.documents), frame.failures, frame.checkpoint, frame.unchanged)
        case CheckpointReached():
            yield pack(Kind.CHECKPOINT, asdict(frame))
        case Question():
            yield pack(Kind.QUESTION, {"source_ids": list(frame.source_ids)})
        case Progressed():
            yield pack(Kind.PROGRESS, asdict(frame))
        case FetchFailed():
            yield pack(Kind.FAILURE, asdict(frame))
        case FetchDone():
            yield pack(Kind.DONE, asdict(frame))
        case _:
            assert_never(frame)


class Assembler:
    """Puts a child's frames together again. Raises FrameError for what does not fit, and is spent then."""

    def __init__(self) -> None:
        self._documents: list[ParsedDocument] = []
        self._head: dict[str, Json] | None = None
        self._chunks: list[Chunk] = []
        self._size = 0

    def accept(self, framed: Framed) -> Frame | None:
        """One frame in; a value when it completes one."""
        kind, payload = framed
        try:
            return self._accept(kind, payload)
        except (TypeError, KeyError, ValueError, AttributeError, OverflowError) as error:
            raise FrameError(f"a {kind.name} frame does not fit: {type(error).__name__}") from None

    def _accept(self, kind: Kind, payload: Json) -> Frame | None:
        match kind:
            case Kind.DOCUMENT:
                self._finish_document()
                self._head = _document_head(payload)
                return None
            case Kind.CHUNKS:
                if self._head is None:
                    raise FrameError("CHUNKS came without their DOCUMENT")
                self._chunks += [_chunk(row) for row in payload]
                self._size += sum(len(chunk.body) for chunk in self._chunks[-len(payload) :])
                if self._size > MAX_BATCH_BYTES:
                    raise FrameError(f"a batch is larger than {MAX_BATCH_BYTES} bytes")
                return None
            case Kind.BATCH:
                return self._finish_batch(payload)
            case _ if self._head is not None:
                if kind in (Kind.QUESTION, Kind.PROGRESS):
                    return _plain(kind, payload)
                raise FrameError(f"a {kind.name} frame came inside a batch")
            case _:
                return _plain(kind, payload)

    def _finish_document(self) -> None:
        if self._head is not None:
            self._documents.append(ParsedDocument(**self._head, chunks=tuple(self._chunks)))
            self._head, self._chunks = None, []

    def _finish_batch(self, payload: Json) -> BatchReady:
        self._finish_document()
        documents, self._documents, self._size = tuple(self._documents), [], 0
        if payload["count"] != len(documents):
            raise FrameError(f"a batch of {payload['count']} documents arrived with {len(documents)}")
        return BatchReady(
            documents=documents,
            failures=_failures(payload["failures"]),
            checkpoint=payload["checkpoint"],
            unchanged=int(payload["unchanged"]),
        )


def _plain(kind: Kind, payload: Json) -> Frame:
    match kind:
        case Kind.CHECKPOINT:
            return CheckpointReached(
                checkpoint=payload["checkpoint"],
                failures=_failures(payload["failures"]),
                unchanged=int(payload["unchanged"]),
            )
        case Kind.QUESTION:
            return Question(source_ids=tuple(_text(source_id) for source_id in payload["source_ids"]))
        case Kind.PROGRESS:
            return Progressed(note=_text(payload["note"]))
        case Kind.FAILURE:
            wait = payload["retry_after_seconds"]
            return FetchFailed(
                code=_text(payload["code"]),
                summary=_text(payload["summary"])[:SUMMARY_CHARACTERS],
                transient=bool(payload["transient"]),
                retry_after_seconds=None if wait is None else float(wait),
            )
        case Kind.DONE:
            return FetchDone(complete=bool(payload["complete"]))
        case _:
            raise FrameError(f"a child may not send a {kind.name} frame")


def _document_head(payload: Json) -> dict[str, Json]:
    revision = payload["revision"]
    return {
        "source_id": _text(payload["source_id"]),
        "title": _text(payload["title"]),
        "link": _text(payload["link"]),
        "revision": None if revision is None else int(revision),
        "content_hash": _text(payload["content_hash"]),
        "source_state": dict(payload["source_state"]),
        "metadata": {_text(name): _text(value) for name, value in payload["metadata"].items()},
    }


def _chunk(row: Json) -> Chunk:
    ordinal, heading, anchor, body = row
    return Chunk(ordinal=int(ordinal), heading=_text(heading), anchor=_text(anchor), body=_text(body))


def _failures(rows: Json) -> tuple[DocumentFailed, ...]:
    return tuple(
        DocumentFailed(
            source_id=_text(row["source_id"]),
            link=_text(row["link"]),
            code=_text(row["code"]),
            summary=_text(row["summary"])[:SUMMARY_CHARACTERS],
        )
        for row in cast(list[dict[str, Any]], rows)
    )


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise TypeError("not text")
    return value
