"""The ledger's upkeep: what is due or was abandoned, retention."""

from collections.abc import Sequence
from typing import Final

from hive.broker.ledger_operations import LedgerOperations
from hive.broker.port import Swept
from hive.broker.queries import load
from hive.ids import ProcessId, QueueName
from hive.store.postgres import Database

_SWEEP: Final = load("sweep")
_RETENTION: Final = load("retention")
ABANDON_BY_LEASE: Final = f"with lost as materialized (\n{_SWEEP['lost_by_lease']}\n)\n{_SWEEP['abandon']}"
ABANDON_BY_OWNER: Final = f"with lost as materialized (\n{_SWEEP['lost_by_owner']}\n)\n{_SWEEP['abandon']}"

ROWS_PER_ROUND: Final = 1_000
ROUNDS: Final = 20  # of one sweep: what is left waits for the next


class LedgerUpkeep(LedgerOperations):
    """The part of the ledger that is not the way of a delivery."""

    def __init__(self, database: Database, *, hive_crash_limit: int) -> None:
        super().__init__(database)
        self._hive_crash_limit = hive_crash_limit

    async def sweep(self, queues: Sequence[QueueName], *, expire_leases: bool = True) -> Swept:
        """Promote what is due, fail what expired; with ``expire_leases`` bring back what was abandoned."""
        due = expired = orphaned = failed = 0
        names = list(queues)
        if not names:
            return Swept()
        async with self._database.statements() as connection:
            for _ in range(ROUNDS):
                moved = await connection.fetchval(_SWEEP["promote"], names, ROWS_PER_ROUND)
                due += moved
                if moved < ROWS_PER_ROUND:
                    break
            for _ in range(ROUNDS):
                late = await connection.fetchval(_SWEEP["expire"], names, ROWS_PER_ROUND)
                failed += late
                if late < ROWS_PER_ROUND:
                    break
            for _ in range(ROUNDS if expire_leases else 0):
                row = await connection.fetchrow(
                    ABANDON_BY_LEASE, names, ROWS_PER_ROUND, self._hive_crash_limit
                )
                if row is None:
                    break
                expired += row["expired"]
                orphaned += row["orphaned"]
                failed += row["failed"]
                if row["expired"] + row["orphaned"] < ROWS_PER_ROUND:
                    break
        return Swept(due=due, expired=expired, orphaned=orphaned, failed=failed)

    async def owner_died(self, owner: ProcessId) -> int:
        """Bring back all that a dead process held; returns how many."""
        moved = 0
        async with self._database.statements() as connection:
            while True:
                row = await connection.fetchrow(
                    ABANDON_BY_OWNER, owner, ROWS_PER_ROUND, self._hive_crash_limit
                )
                if row is None:
                    return moved
                moved += row["orphaned"]
                if row["orphaned"] < ROWS_PER_ROUND:
                    return moved

    async def prune(self, *, completed_hours: float, failed_days: float) -> int:
        """Delete what ended long ago, dead letters of streams included; returns how many rows.

        In small batches, each a transaction of its own, so that it never holds up the queue.
        """
        gone = 0
        async with self._database.statements() as connection:
            for query, age in (
                ("prune_completed", completed_hours),
                ("prune_failed", failed_days),
                ("prune_dead_letters", failed_days),
            ):
                while True:
                    batch = await connection.fetchval(_RETENTION[query], float(age), ROWS_PER_ROUND)
                    gone += batch
                    if batch < ROWS_PER_ROUND:
                        break
        return gone
