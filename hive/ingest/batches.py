"""Batches: what lies between fetching and processing, and how it is packed.

The payload is JSON, compressed by zlib at its fastest level: batches live for seconds, and text shrinks to a
quarter even so. Packing runs in a thread, since a large batch would hold the loop for a tenth of a second.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from anyio import to_thread

from hive.errors import Permanent
from hive.ids import AttemptId, BatchId, MessageId
from hive.ingest.cleaning import clean, clean_json
from hive.ingest.fetching import Chunk, ParsedDocument
from hive.store.connection import Connection

LONGEST_TITLE = 1000
MAX_UNPACKED_BYTES = 512 * 1024 * 1024


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
    text = json.dumps([asdict(document) for document in documents], separators=(",", ":"))
    payload = zlib.compress(text.encode(), 1)
    if len(payload) <= max_bytes:
        return Packing(batches=(Packed(payload=payload, documents=len(documents)),), oversize=())
    if len(documents) == 1:
        return Packing(batches=(), oversize=documents)
    middle = len(documents) // 2
    first, second = _pack(documents[:middle], max_bytes), _pack(documents[middle:], max_bytes)
    return Packing(batches=(*first.batches, *second.batches), oversize=(*first.oversize, *second.oversize))


def _unpack(payload: bytes) -> list[ParsedDocument]:
    inflater = zlib.decompressobj()
    try:
        text = inflater.decompress(payload, MAX_UNPACKED_BYTES)
        if not inflater.eof:
            raise BatchUnreadable(f"the batch is cut off, or larger than {MAX_UNPACKED_BYTES} bytes")
        return [_document(entry) for entry in json.loads(text)]
    except (zlib.error, ValueError, KeyError, TypeError) as error:
        raise BatchUnreadable(f"the batch cannot be unpacked: {error}") from error


def _document(entry: dict[str, Any]) -> ParsedDocument:
    return ParsedDocument(
        source_id=clean(entry["source_id"]),
        title=clean(entry["title"], LONGEST_TITLE),
        link=clean(entry["link"]),
        revision=entry["revision"],
        content_hash=entry["content_hash"],
        source_state=clean_json(entry["source_state"]),
        metadata=clean_json(entry["metadata"]),
        chunks=[
            Chunk(
                ordinal=chunk["ordinal"],
                heading=clean(chunk["heading"]),
                anchor=clean(chunk["anchor"]),
                body=clean(chunk["body"]),
            )
            for chunk in entry["chunks"]
        ],
    )


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
