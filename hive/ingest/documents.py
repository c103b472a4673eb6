"""Document rows: who brought them, which text is in force, and what need not be indexed again.

Every writer locks documents in the order of their ids in the source, so that two batches that share documents
wait for each other instead of dying in a deadlock.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hive.ids import AttemptId, BatchId, PairId
from hive.ingest.fetching import ParsedDocument
from hive.ingest.versions import Version, version_of
from hive.store.connection import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """What is in force for one source id."""

    id: int
    content_hash: bytes
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """A document that a connector brought; ``current``: the index holds just this text."""

    document: int
    source_state: Mapping[str, Any]
    current: bool


def last_of_each(documents: Sequence[ParsedDocument]) -> list[ParsedDocument]:
    """``documents`` with only the last one of each source id, in the order in which they are locked."""
    latest = {document.source_id: document for document in documents}
    return [latest[source_id] for source_id in sorted(latest)]


def hash_of(document: ParsedDocument) -> bytes:
    return bytes.fromhex(document.content_hash)


async def stored(
    connection: Connection, source_ids: Sequence[str], *, lock: bool = False
) -> dict[str, StoredDocument]:
    """What is in force for ``source_ids``; with ``lock`` it stays in force until the transaction ends."""
    query = (
        "select id, source_id, content_hash, version from document where source_id = any($1::text[]) "
        'order by source_id collate "C"'
    )
    rows = await connection.fetch(query + (" for no key update" if lock else ""), source_ids)
    return {
        row["source_id"]: StoredDocument(
            id=row["id"], content_hash=row["content_hash"], version=list(row["version"])
        )
        for row in rows
    }


async def upsert(
    connection: Connection, documents: Sequence[ParsedDocument], batch: BatchId
) -> dict[str, int]:
    """Write the rows of ``documents`` (in locking order); returns the ids of those that were written.

    One that is missing in the answer has a newer text, or the same one, in force already.
    """
    rows = await connection.fetch(
        _UPSERT,
        [document.source_id for document in documents],
        [document.title for document in documents],
        [document.link for document in documents],
        [hash_of(document) for document in documents],
        [version_of(document.revision, batch)[0] for document in documents],
        [json.dumps(dict(document.metadata)) for document in documents],
        [len(document.chunks) for document in documents],
        batch,
    )
    return {row["source_id"]: row["id"] for row in rows}


async def confirm(connection: Connection, seen: Mapping[int, Version]) -> None:
    """The text in force was seen again in these versions: nothing older may replace it from now on."""
    await connection.execute(
        "update document d set version = array[s.revision, s.batch] "
        "from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as s (id, revision, batch) "
        "where d.id = s.id and d.version < array[s.revision, s.batch]",
        list(seen),
        [version[0] for version in seen.values()],
        [version[1] for version in seen.values()],
    )


async def bring(connection: Connection, pair: PairId, attempt: AttemptId, brought: Sequence[Brought]) -> None:
    """Note that ``pair`` has these documents, and what it wants to remember of them.

    Where a newer text of another connector stays in force, nothing is remembered: the next run reads the
    document again instead of taking it for unchanged.
    """
    await connection.execute(
        "insert into document_source (pair, document, source_state, seen_attempt) "
        "select $1, b.document, b.state::jsonb, $2 "
        "from unnest($3::bigint[], $4::text[]) as b (document, state) "
        "on conflict (pair, document) do update "
        "set source_state = excluded.source_state, seen_attempt = excluded.seen_attempt",
        pair,
        attempt,
        [entry.document for entry in brought],
        [json.dumps(dict(entry.source_state)) if entry.current else "{}" for entry in brought],
    )


async def known(connection: Connection, pair: PairId, source_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What ``pair`` remembers of those of ``source_ids`` that it brought."""
    rows = await connection.fetch(
        "select d.source_id, s.source_state from document d join document_source s on s.document = d.id "
        "where d.source_id = any($2::text[]) and s.pair = $1 and s.source_state <> '{}'",
        pair,
        source_ids,
    )
    return {row["source_id"]: row["source_state"] for row in rows}


_UPSERT = """
insert into document (source_id, title, link, content_hash, version, metadata, chunk_count)
select b.source_id, b.title, b.link, b.hash, array[b.revision, $8::bigint], b.metadata::jsonb, b.chunks
from unnest($1::text[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], $6::text[], $7::integer[])
     as b (source_id, title, link, hash, revision, metadata, chunks)
order by b.source_id collate "C"
on conflict (source_id) do update
set title = excluded.title, link = excluded.link, content_hash = excluded.content_hash,
    version = excluded.version, metadata = excluded.metadata, chunk_count = excluded.chunk_count,
    updated_at = now()
where document.version <= excluded.version and document.content_hash <> excluded.content_hash
returning id, source_id
"""
