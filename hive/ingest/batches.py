"""Batches: what lies between fetching and processing, and how it is packed.

The payload is JSON in lines, compressed by zlib at its fastest level: batches live for seconds, and text
shrinks to a quarter even so.

    {document without its chunks}
    [[ordinal, heading, anchor, body], … at most CHUNKS_IN_LINE]
    …

Packing runs in a thread, and line by line: while a thread encodes or decodes one piece of JSON nothing else
of Python runs, the loop included, so that a whole batch in one piece would hold it for a tenth of a second.
"""

import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from anyio import to_thread

from hive.errors import Permanent
from hive.ids import AttemptId, BatchId, MessageId
from hive.ingest.cleaning import clean, clean_json
from hive.ingest.fetching import Chunk, ParsedDocument
from hive.store.connection import Connection

LONGEST_TITLE = 1000
MAX_UNPACKED_BYTES = 512 * 1024 * 1024
CHUNKS_IN_LINE: Final = 64


class BatchUnreadable(Permanent):
    """A stored batch could not be unpacked: the row is damaged."""

    code = "batch_unreadable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A payload ready to be stored, and the documents that are too large for any."""

    payload: bytes
    documents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """``batches`` hold everything but ``oversize``: documents that exceed the limit on their own."""

    batches: Sequence[Packed]
    oversize: Sequence[ParsedDocument]


async def pack(documents: Sequence[ParsedDocument], *, max_bytes: int) -> Packing:
    """Pack ``documents``, into more than one payload where they would exceed ``max_bytes``."""
    return await to_thread.run_sync(_pack, documents, max_bytes)


async def unpack(payload: bytes) -> list[ParsedDocument]:
    """The documents of a stored payload, in order. Raises BatchUnreadable."""
    return await to_thread.run_sync(_unpack, payload)


def _pack(documents: Sequence[ParsedDocument], max_bytes: int) -> Packing:
    if not documents:
        return Packing(batches=(), oversize=())
    payload = _compressed(documents)
    if len(payload) <= max_bytes:
        return Packing(batches=(Packed(payload=payload, documents=len(documents)),), oversize=())
    if len(documents) == 1:
        return Packing(batches=(), oversize=documents)
    middle = len(documents) // 2
    first, second = _pack(documents[:middle], max_bytes), _pack(documents[middle:], max_bytes)
    return Packing(batches=(*first.batches, *second.batches), oversize=(*first.oversize, *second.oversize))


def _compressed(documents: Sequence[ParsedDocument]) -> bytes:
    deflater = zlib.compressobj(1)
    parts = [deflater.compress(line) for line in _lines(documents)]
    return b"".join([*parts, deflater.flush()])


def _lines(documents: Sequence[ParsedDocument]) -> Iterator[bytes]:
    for document in documents:
        yield _line(
            {
                "source_id": document.source_id,
                "title": document.title,
                "link": document.link,
                "revision": document.revision,
                "content_hash": document.content_hash,
                "source_state": document.source_state,
                "metadata": document.metadata,
            }
        )
        for at in range(0, len(document.chunks), CHUNKS_IN_LINE):
            some = document.chunks[at : at + CHUNKS_IN_LINE]
            yield _line([(chunk.ordinal, chunk.heading, chunk.anchor, chunk.body) for chunk in some])


def _line(value: object) -> bytes:
    # Lone surrogates, which UTF-8 has no bytes for, become question marks.
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode(errors="replace") + b"\n"


def _unpack(payload: bytes) -> list[ParsedDocument]:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(payload, MAX_UNPACKED_BYTES)
        if not inflater.eof:
            raise BatchUnreadable(f"the batch is cut off, or larger than {MAX_UNPACKED_BYTES} bytes")
        documents: list[ParsedDocument] = []
        chunks: list[Chunk] = []
        for line in filter(None, text.split(b"\n")):
            value = json.loads(line)
            if isinstance(value, dict):
                chunks = []
                documents.append(_document(value, chunks))
            else:
                chunks += [_chunk(row) for row in value]
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise BatchUnreadable(f"the batch cannot be unpacked: {error}") from error
    if not documents:
        raise BatchUnreadable("there is nothing in the batch")
    return documents


def _document(entry: dict[str, Any], chunks: Sequence[Chunk]) -> ParsedDocument:
    return ParsedDocument(
        source_id=clean(entry["source_id"]),
        title=clean(entry["title"], LONGEST_TITLE),
        link=clean(entry["link"]),
        revision=entry["revision"],
        content_hash=entry["content_hash"],
        source_state=clean_json(entry["source_state"]),
        metadata=clean_json(entry["metadata"]),
        chunks=chunks,
    )


def _chunk(row: Sequence[Any]) -> Chunk:
    ordinal, heading, anchor, body = row
    return Chunk(ordinal=ordinal, heading=clean(heading), anchor=clean(anchor), body=clean(body))


async def insert(connection: Connection, attempt: AttemptId, number: int, batch: Packed) -> BatchId:
    """Store a batch; its process job is named by ``set_job`` in the same transaction."""
    return BatchId(
        await connection.fetchval(
            "insert into index_batch (attempt, number, documents, payload) "
            "values ($1, $2, $3, $4) returning id",
            attempt,
            number,
            batch.documents,
            batch.payload,
        )
    )


async def set_job(connection: Connection, batch: BatchId, job: MessageId) -> None:
    """Name the job that processes ``batch``."""
    await connection.execute("update index_batch set job = $2 where id = $1", batch, job)


async def payload_of(connection: Connection, batch: BatchId) -> bytes | None:
    """What is still to be processed: None when the batch is done, was cancelled, or is gone.

    A failed batch keeps its payload, so that replaying its job makes up for it.
    """
    query = "select payload from index_batch where id = $1 and status <> 'done'"
    return await connection.fetchval(query, batch)


async def holds_payload(connection: Connection, batch: BatchId) -> bool:
    """Lock the batch; whether it is still to be processed."""
    return bool(
        await connection.fetchval(
            "select payload is not null from index_batch where id = $1 and status <> 'done' "
            "for no key update",
            batch,
        )
    )


async def set_done(connection: Connection, batch: BatchId, *, documents_new: int, chunks: int) -> None:
    """The batch is in the index; its payload goes."""
    await connection.execute(
        "update index_batch set status = 'done', documents_new = $2, chunks = $3, payload = null, "
        "error = null, finished_at = now() where id = $1",
        batch,
        documents_new,
        chunks,
    )


async def set_failed(connection: Connection, batch: BatchId, cause: str) -> None:
    """The batch's job was given up. No effect on one that is done."""
    await connection.execute(
        "update index_batch set status = 'failed', error = $2, finished_at = now() "
        "where id = $1 and status = 'stored'",
        batch,
        cause,
    )


async def open_count(connection: Connection, attempt: AttemptId) -> int:
    """How many batches of the attempt wait for processing."""
    return await connection.fetchval(
        "select count(*) from index_batch where attempt = $1 and status = 'stored'", attempt
    )


async def drop_of_cancelled(connection: Connection, attempt: AttemptId) -> list[MessageId]:
    """Empty the open batches of a cancelled attempt; returns the jobs that need not run any more."""
    rows = await connection.fetch(
        "update index_batch set status = 'failed', error = 'cancelled', payload = null, finished_at = now() "
        "where attempt = $1 and status = 'stored' returning job",
        attempt,
    )
    return [MessageId(row["job"]) for row in rows if row["job"] is not None]
