"""What operators do with the ledger: pause, cancel, count, look, replay."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final
from uuid import UUID

import asyncpg

from hive.broker import ledger_rows as rows
from hive.broker.deadlocks import again_after_deadlock
from hive.broker.port import DeadLetter, Depth, JobView, Lane, Taker, TenantBacklog
from hive.broker.queries import load
from hive.errors import Conflict, InvalidInput
from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId
from hive.states import JobState
from hive.store.connection import Connection
from hive.store.postgres import Database

_OPERATE: Final = load("operate")
_VIEWS: Final = load("views")

COUNTED_TO: Final = 10_001
ROWS_PER_ROUND: Final = 1_000
WAITING: Final = (JobState.PENDING, JobState.SCHEDULED, JobState.RETRYING)


def _cancelling(found: str) -> str:
    return f"with found as materialized (\n{found}\n)\n{_OPERATE['cancel_found']}"


def _in_each_state(found: str) -> dict[JobState, str]:
    """By name and not as an argument: a plan for any state would find no index of one."""
    return {each: _cancelling(found.replace("'pending'", f"'{each.value}'")) for each in WAITING}


CANCEL_LINE: Final = _in_each_state(_OPERATE["of_line"])
CANCEL_QUEUE: Final = _in_each_state(_OPERATE["of_queue"])
CANCEL_TASK: Final = _cancelling(_OPERATE["of_task"])
FIRST: Final = ("", datetime(1970, 1, 1, tzinfo=UTC), UUID(int=0))


class LedgerOperations:
    """The operators' part of the ledger."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def cancel(self, ids: Sequence[MessageId], *, tenant: TenantId | None = None) -> int:
        """Cancel what waits, flag what runs."""
        if not ids:
            return 0
        async with self._database.acquire() as connection:
            return int(
                await again_after_deadlock(lambda: connection.fetchval(_OPERATE["cancel"], list(ids), tenant))
            )

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

    def receive(self, queue: QueueName, owner: ProcessId, taker: Taker | None) -> None:
        """Nothing to hand over: nothing is given but to a claim."""

    async def withdraw(self, queue: QueueName, owner: ProcessId) -> None:
        """Nothing to take back: nothing is given but to a claim."""

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
        """Cancel what waits and flag what runs, of all that fits.

        What is being claimed meanwhile is waited for, and flagged at the end.
        """
        if queue is None and tenant is None and task is None:
            raise InvalidInput("filter", "none given: it would cancel everything")
        line = None if tenant is None else str(tenant)
        touched = 0
        async with self._database.acquire() as connection:
            if queue is not None:
                queues = [queue]
            else:
                queues = [row["queue"] for row in await connection.fetch(_OPERATE["queues"])]
            flag = (queues, line, task)
            touched += await connection.fetchval(_OPERATE["flag_where"], *flag)
            for each in queues:
                if task is not None:
                    touched += await self._cancel_task(connection, each, line, task)
                else:
                    touched += await self._cancel_lines(connection, each, line)
            touched += await connection.fetchval(_OPERATE["flag_where"], *flag)
        return touched

    async def _cancel_lines(self, connection: Connection, queue: QueueName, line: str | None) -> int:
        """Cancel what waits of one tenant, or of all."""
        queries = CANCEL_QUEUE if line is None else CANCEL_LINE
        touched = 0
        for query in queries.values():
            for lane in Lane:
                after: tuple[Any, ...] = FIRST if line is None else (line, *FIRST[1:])
                while True:
                    given = (queue, int(lane), *after, ROWS_PER_ROUND)
                    row = await again_after_deadlock(partial(connection.fetchrow, query, *given))
                    if row is None or row["last_line"] is None:
                        break
                    touched += row["touched"]
                    after = (row["last_line"], row["last_run_at"], row["last_id"])
        return touched

    async def _cancel_task(
        self, connection: Connection, queue: QueueName, line: str | None, task: TaskName
    ) -> int:
        touched = 0
        after: tuple[Any, ...] = FIRST[1:]
        while True:
            given = (queue, task, line, *after, ROWS_PER_ROUND)
            row = await again_after_deadlock(partial(connection.fetchrow, CANCEL_TASK, *given))
            if row is None or row["last_run_at"] is None:
                return touched
            touched += row["touched"]
            after = (row["last_run_at"], row["last_id"])

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
