"""Removing a connector: short transactions, each safe to repeat, in an order that nobody can collide with.

    attempt cancelled ─▶ batches ─▶ attempts ─▶ documents, 200 at a time ─▶ the connector itself

Deleting the connector's row at once would cascade from the pair to its batches while a process job holds a
batch and waits for the pair.
"""

from contextlib import suppress
from typing import Final

from hive.client import Client
from hive.context import Stores
from hive.errors import Conflict, NotFound
from hive.ids import AttemptId, PairId, TenantId
from hive.ingest.attempts import Attempts
from hive.logger import get_logger
from hive.store.connection import Connection

log = get_logger(__name__)

DOCUMENTS_AT_ONCE: Final = 200


class Removal:
    """Takes a connector in state `removing` out of a tenant."""

    def __init__(self, stores: Stores, attempts: Attempts) -> None:
        self._stores = stores
        self._attempts = attempts

    async def run(self, tenant: TenantId, pair: PairId, *, client: Client) -> int:
        """Remove it, with the documents that no other connector brought; returns how many those were."""
        async with self._stores.transaction(tenant) as connection:
            active = await connection.fetchval(
                "select id from index_attempt where pair = $1 and status in ('not_started', 'in_progress')",
                pair,
            )
        if active is not None:
            with suppress(Conflict, NotFound):  # it ended just now, or another removal was faster
                await self._attempts.cancel(tenant, AttemptId(active), client=client)
        async with self._stores.transaction(tenant) as connection:
            await connection.execute(
                "delete from index_batch where attempt in (select id from index_attempt where pair = $1)",
                pair,
            )
        async with self._stores.transaction(tenant) as connection:
            await connection.execute("delete from index_attempt where pair = $1", pair)
        removed = 0
        while True:
            async with self._stores.transaction(tenant) as connection:
                seen, gone = await _some_documents(connection, pair)
            removed += gone
            if not seen:
                break
        async with self._stores.transaction(tenant) as connection:
            row = await connection.fetchrow(
                "delete from connector_credential_pair where id = $1 and state = 'removing' "
                "returning connector, credential",
                pair,
            )
            if row is not None:
                await connection.execute("delete from connector where id = $1", row["connector"])
                await connection.execute("delete from credential where id = $1", row["credential"])
        log.info("connector.removed", tenant=tenant, pair=pair, documents=removed)
        return removed


async def _some_documents(connection: Connection, pair: PairId) -> tuple[int, int]:
    """Let go of some of the pair's documents; returns how many, and how many of them were deleted.

    Documents are locked first, in the order in which everyone locks them. Only a statement begun after that
    sees whether another connector has brought one of them in the meantime.
    """
    rows = await connection.fetch(
        "select id from document where id in (select document from document_source where pair = $1 limit $2) "
        'order by source_id collate "C" for update',
        pair,
        DOCUMENTS_AT_ONCE,
    )
    documents = [row["id"] for row in rows]
    await connection.execute(
        "delete from document_source where pair = $1 and document = any($2::bigint[])", pair, documents
    )
    gone = await connection.fetch(
        "delete from document d where d.id = any($1::bigint[]) "
        "and not exists (select from document_source s where s.document = d.id) returning d.id",
        documents,
    )
    return len(documents), len(gone)
