"""The ledger's upkeep and what operators do with it: sweeps, counts, dead letters, retention."""

from collections.abc import Mapping, Sequence
from typing import Final

import asyncpg

from hive.broker import ledger_rows as rows
from hive.broker.port import DeadLetter, Depth, JobView, Swept, TenantBacklog
from hive.broker.queries import load
from hive.errors import Conflict, InvalidInput
from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId
from hive.states import JobState
from hive.store.postgres import Database

_SWEEP: Final = load("sweep")
_OPERATE: Final = load("operate")
_VIEWS: Final = load("views")
ABANDON_BY_LEASE: Final = f"with lost as materialized (\n{_SWEEP['lost_by_lease']}\n)\n{_SWEEP['abandon']}"
ABANDON_BY_OWNER: Final = f"with lost as materialized (\n{_SWEEP['lost_by_owner']}\n)\n{_SWEEP['abandon']}"

COUNTED_TO: Final = 10_001
ROWS_PER_ROUND: Final = 1_000
ROUNDS: Final = 20  # of one sweep: what is left waits for the next


class LedgerUpkeep:
    """The part of the ledger that is not the way of a delivery."""

    def __init__(self, database: Database, *, hive_crash_limit: int) -> None:
        self._database = database
        self._hive_crash_limit = hive_crash_limit

    async def sweep(self, queues: Sequence[QueueName], *, expire_leases: bool = True) -> Swept:
        """Promote what is due, fail what expired; with ``expire_leases`` bring back what was abandoned."""
        due = expired = orphaned = failed = 0
        names = list(queues)
        if not names:
            return Swept()
        async with self._database.acquire() as connection:
            for _ in range(ROUNDS):
                moved = await connection.fetchval(_SWEEP["promote"], names, ROWS_PER_ROUND)
                due += moved
                if moved < ROWS_PER_ROUND:
                    break
            failed += await connection.fetchval(_SWEEP["expire"], names, ROWS_PER_ROUND)
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
        async with self._database.acquire() as connection:
            while True:
                row = await connection.fetchrow(
                    ABANDON_BY_OWNER, owner, ROWS_PER_ROUND, self._hive_crash_limit
                )
                if row is None:
                    return moved
                moved += row["orphaned"]
                if row["orphaned"] < ROWS_PER_ROUND:
                    return moved

    async def cancel(self, ids: Sequence[MessageId], *, tenant: TenantId | None = None) -> int:
        """Cancel what waits, flag what runs."""
        if not ids:
            return 0
        async with self._database.acquire() as connection:
            return int(await connection.fetchval(_OPERATE["cancel"], list(ids), tenant))

    async def depth(self, queue: QueueName) -> Depth:
        """Counts, each exact to 10,000."""
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(_VIEWS["depth"], queue, COUNTED_TO)
        assert row is not None
        return Depth(
            queue=queue,
            waiting=row["waiting"],
            delayed=row["delayed"],
            running=row["running"],
            oldest_seconds=row["oldest_seconds"],
        )

    async def announce(self, owner: ProcessId, slots: Mapping[QueueName, int]) -> None:
        """Nothing to note: shares are computed from what is in flight, at each claim."""

    async def pause(self, queue: QueueName) -> None:
        """Hand out nothing more of ``queue``, in every process."""
        async with self._database.acquire() as connection:
            await connection.execute(_OPERATE["pause"], queue)

    async def resume(self, queue: QueueName) -> None:
        """Hand out messages of ``queue`` again, and wake whoever waits for them."""
        async with self._database.acquire() as connection:
            await connection.execute(_OPERATE["resume"], queue)

    async def paused(self) -> frozenset[QueueName]:
        """The queues that are paused."""
        async with self._database.acquire() as connection:
            return frozenset(row["queue"] for row in await connection.fetch(_OPERATE["paused"]))

    async def cancel_where(
        self,
        *,
        queue: QueueName | None = None,
        tenant: TenantId | None = None,
        task: TaskName | None = None,
    ) -> int:
        """Cancel what waits and flag what runs, of all that fits."""
        if queue is None and tenant is None and task is None:
            raise InvalidInput("filter", "none given: it would cancel everything")
        touched = 0
        async with self._database.acquire() as connection:
            while True:
                found = await connection.fetch(_OPERATE["cancellable"], queue, tenant, task, ROWS_PER_ROUND)
                if not found:
                    return touched
                touched += await connection.fetchval(_OPERATE["cancel"], [row["id"] for row in found], tenant)

    async def backlog(
        self, queue: QueueName, *, after: TenantId | None = None, limit: int = 100
    ) -> list[TenantBacklog]:
        """What each tenant has, in the order of their ids; system work comes first."""
        async with self._database.acquire() as connection:
            found = await connection.fetch(_VIEWS["backlog"], queue, after, limit, COUNTED_TO)
        return [
            TenantBacklog(
                tenant=row["tenant"],
                waiting=row["waiting"],
                running=row["running"],
                oldest_seconds=row["oldest_seconds"],
            )
            for row in found
        ]

    async def position(self, id: MessageId) -> int | None:
        """How many stand before it in its tenant's line, or None when it does not wait."""
        async with self._database.acquire() as connection:
            return await connection.fetchval(_VIEWS["position"], id, COUNTED_TO)

    async def dead_letters(
        self, *, queue: QueueName | None = None, tenant: TenantId | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Failed jobs, the newest first."""
        async with self._database.acquire() as connection:
            found = await connection.fetch(_VIEWS["dead_letters"], queue, tenant, limit)
        return [rows.dead_letter_of(row) for row in found]

    async def replay(self, ids: Sequence[MessageId]) -> int:
        """Put failed or cancelled jobs back in line: all of those that ``ids`` names, or none."""
        async with self._database.transaction() as connection:
            found = await connection.fetch(_OPERATE["replayable"], list(ids))
            seen: dict[tuple[str | None, str, str], MessageId] = {}
            for row in found:
                holder = row["holder"]
                if row["key"] is not None:
                    holder = holder or seen.get((row["tenant"], row["task"], row["key"]))
                    seen[(row["tenant"], row["task"], row["key"])] = row["id"]
                if holder is not None:
                    raise _conflict(row["id"], holder)
            try:
                return int(await connection.fetchval(_OPERATE["replay"], [row["id"] for row in found]))
            except asyncpg.UniqueViolationError as error:
                raise Conflict("another job took the key of one of them just now") from error

    async def purge(self, ids: Sequence[MessageId]) -> int:
        """Delete failed jobs for good."""
        async with self._database.acquire() as connection:
            return int(await connection.fetchval(_OPERATE["purge"], list(ids)))

    async def prune(self, *, completed_hours: float, failed_days: float) -> int:
        """Delete what ended long ago, dead letters of streams included; returns how many rows.

        In small batches, each a transaction of its own, so that it never holds up the queue.
        """
        gone = 0
        async with self._database.acquire() as connection:
            for query, age in (
                ("prune_completed", completed_hours),
                ("prune_failed", failed_days),
                ("prune_dead_letters", failed_days),
            ):
                while True:
                    batch = await connection.fetchval(_OPERATE[query], float(age), ROWS_PER_ROUND)
                    gone += batch
                    if batch < ROWS_PER_ROUND:
                        break
        return gone

    async def find(self, id: MessageId) -> JobView | None:
        """One job, or None."""
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(_VIEWS["find"], id)
        return None if row is None else rows.view_of(row)

    async def jobs(
        self,
        *,
        queue: QueueName | None = None,
        tenant: TenantId | None = None,
        state: JobState | None = None,
        task: str | None = None,
        limit: int = 100,
    ) -> list[JobView]:
        """Jobs, newest first."""
        async with self._database.acquire() as connection:
            found = await connection.fetch(_VIEWS["jobs"], queue, tenant, state, task, limit)
        return [rows.view_of(row) for row in found]


def _conflict(id: MessageId, holder: MessageId) -> Conflict:
    return Conflict(f"job {id} cannot run again: job {holder} holds the same key", remedy="wait for its end")
