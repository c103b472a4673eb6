"""Attempts held against their jobs: what a job that was given up, cancelled or lost means for its attempt.

| the job | its batch | its attempt, while the fetch has not ended |
|---|---|---|
| failed | failed, with the job's cause | fails, with the job's cause |
| cancelled | failed: cancelled | is cancelled |
| completed or missing | is enqueued anew | is interrupted: the next one goes on from its checkpoint |

Postgres alone is the truth: both sides are rows, and one statement sees both as of the same moment.
"""

from collections.abc import Sequence

from hive.client import Client
from hive.context import Stores
from hive.ids import AttemptId, BatchId, TenantId
from hive.ingest import batches
from hive.ingest.attempts import PROCESS_TASK, Attempts
from hive.ingest.completion import complete_if_finished, end_fetch, lock_attempt
from hive.logger import get_logger
from hive.store.connection import Connection, Row

log = get_logger(__name__)

AT_ONCE = 200


class Reconciliation:
    """One tenant's round. Every step is its own short transaction and safe to repeat."""

    def __init__(self, stores: Stores, attempts: Attempts) -> None:
        self._stores = stores
        self._attempts = attempts

    async def run(self, tenant: TenantId, *, client: Client) -> int:
        """Bring attempts and jobs into line; returns how many attempts were touched."""
        async with self._stores.transaction(tenant) as connection:
            suspects = [AttemptId(row["id"]) for row in await connection.fetch(_SUSPECTS, AT_ONCE)]
            cancelled = [AttemptId(row["id"]) for row in await connection.fetch(_CANCELLED, AT_ONCE)]
        for attempt in suspects:
            await self._settle(tenant, attempt, client)
        for attempt in cancelled:
            await self._attempts.stop_work(tenant, attempt, client=client)
        return len(suspects) + len(cancelled)

    async def _settle(self, tenant: TenantId, attempt: AttemptId, client: Client) -> None:
        async with self._stores.transaction(tenant) as connection:
            # Batches first, then the attempt: the order of locks everywhere.
            for row in await connection.fetch(_LOST_BATCHES, attempt, AT_ONCE):
                await self._settle_batch(connection, tenant, attempt, row, client)
            locked = await lock_attempt(connection, attempt)
            if locked is None or not locked.active:
                return
            if locked.fetch_outcome is None:
                job = await connection.fetchrow(_FETCH_JOB, attempt)
                if await self._settle_fetch(connection, attempt, job):
                    log.warning("attempt.cancelled", tenant=tenant, attempt=attempt, cause="job cancelled")
                    return
            status = await complete_if_finished(connection, attempt)
        log.info("attempt.reconciled", tenant=tenant, attempt=attempt, status=status)

    async def _settle_batch(
        self, connection: Connection, tenant: TenantId, attempt: AttemptId, row: Row, client: Client
    ) -> None:
        batch = BatchId(row["id"])
        if row["state"] == "failed":
            await batches.set_failed(connection, batch, row["error_summary"])
            return
        if row["state"] == "cancelled":
            await batches.set_failed(connection, batch, "its job was cancelled")
            return
        job = await client.enqueue(
            client.registry.get(PROCESS_TASK),
            {"attempt": attempt, "batch": batch},
            connection=connection,
            tenant=tenant,
            key=f"batch:{batch}",
        )
        await batches.set_job(connection, batch, job)
        log.warning("batch.enqueued_anew", tenant=tenant, attempt=attempt, batch=batch)

    async def _settle_fetch(self, connection: Connection, attempt: AttemptId, job: Row | None) -> bool:
        """Judge the fetch by its job; returns whether that ended the attempt at once, by cancelling it."""
        state = None if job is None else job["state"]
        if state == "failed" and job is not None:
            cause = f"{job['error_kind']}: {job['error_summary']}"
            await end_fetch(connection, attempt, "failed", cause=cause)
        elif state == "cancelled":
            await connection.execute(
                "update index_attempt set status = 'cancelled', error = 'its job was cancelled', "
                "cancel_requested_at = now(), finished_at = now() where id = $1",
                attempt,
            )
            return True
        elif state in (None, "completed"):
            await end_fetch(connection, attempt, "interrupted", cause="its job is gone")
        return False


async def drop_ended(stores: Stores, tenant: TenantId, *, keep_days: float, at_once: int = 100) -> int:
    """Delete attempts that ended over ``keep_days`` ago, but never a connector's newest; returns how many."""
    dropped = 0
    while True:
        async with stores.transaction(tenant) as connection:
            rows = await connection.fetch(_OLD, keep_days * 86400, at_once)
            old: Sequence[int] = [row["id"] for row in rows]
            # In the order of locks: batches before attempts.
            await connection.execute("delete from index_batch where attempt = any($1::bigint[])", old)
            await connection.execute("delete from index_attempt where id = any($1::bigint[])", old)
        dropped += len(old)
        if len(old) < at_once:
            return dropped


_LOST = "(j.id is null or j.state in ('failed', 'cancelled', 'completed'))"

_SUSPECTS = f"""
select a.id from index_attempt a left join hive.job j on j.id = a.job
where a.status in ('not_started', 'in_progress')
  and (case when a.fetch_outcome is null then {_LOST} else not exists (
           select from index_batch b where b.attempt = a.id and b.status = 'stored') end
       or exists (
           select from index_batch b left join hive.job j on j.id = b.job
           where b.attempt = a.id and b.status = 'stored' and {_LOST}))
order by a.id limit $1
"""

_CANCELLED = """
select a.id from index_attempt a
where a.status = 'cancelled' and exists (
    select from index_batch b where b.attempt = a.id and b.status = 'stored')
order by a.id limit $1
"""

# The job is read by a subquery: a lock on its row would turn the order of locks around.
_LOST_BATCHES = f"""
select b.id, j.state, j.error_summary from index_batch b left join hive.job j on j.id = b.job
where b.attempt = $1 and b.status = 'stored' and {_LOST}
order by b.id limit $2 for no key update of b
"""

_FETCH_JOB = """
select j.state, j.error_kind, j.error_summary
from index_attempt a join hive.job j on j.id = a.job where a.id = $1
"""

_OLD = """
select id from index_attempt a
where finished_at < now() - make_interval(secs => $1)
  and exists (select from index_attempt newer where newer.pair = a.pair and newer.id > a.id)
order by id limit $2
"""
