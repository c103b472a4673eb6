"""Attempts: one run of a connector each. The row is the claim on the connector.

Two simultaneous starts make one row, by a partial unique index over the active attempts of a connector. The
fetch job is enqueued in the same transaction: there is no attempt without a job, no job without an attempt.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from hive.client import Client
from hive.context import Stores
from hive.errors import Conflict, NotFound
from hive.ids import AttemptId, MessageId, PairId, TenantId
from hive.ingest import batches, document_errors
from hive.ingest.completion import AttemptStatus, lock_attempt
from hive.ingest.document_errors import DocumentError
from hive.ingest.waiting import waiting_for
from hive.logger import get_logger
from hive.store.connection import Connection, Row

log = get_logger(__name__)

FETCH_TASK: Final = "fetch_connector"
PROCESS_TASK: Final = "process_batch"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptView:
    """An attempt as people and programs see it. All counts are derived from its batches.

    ``documents_total`` are the documents in its batches and those seen unchanged; ``documents_new`` those
    that were new or changed. ``waiting_for`` says what an active attempt waits for, None while it moves.
    """

    id: AttemptId
    pair: PairId
    connector: str
    status: AttemptStatus
    documents_new: int
    documents_total: int
    batches_done: int
    batches_failed: int
    batches_total: int
    document_errors: int
    error: str | None
    waiting_for: str | None
    created_at: datetime
    started_at: datetime | None
    progressed_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """``created`` is false when the connector had an active attempt already: ``attempt`` is that one."""

    attempt: AttemptId
    created: bool


class Attempts:
    """The attempts of every tenant."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores

    async def start(self, tenant: TenantId, pair: PairId, *, client: Client) -> Started:
        """Start a run of ``pair``, unless one is active.

        It goes on from the checkpoint of the run before it if that one was interrupted. Raises NotFound.
        """
        async with self._stores.transaction(tenant) as connection:
            attempt = await connection.fetchval(_INSERT, pair)
            if attempt is None:
                return Started(attempt=await self._active(connection, pair), created=False)
            task = client.registry.get(FETCH_TASK)
            job = await client.enqueue(
                task, {"attempt": attempt}, connection=connection, tenant=tenant, key=f"attempt:{attempt}"
            )
            await connection.execute("update index_attempt set job = $2 where id = $1", attempt, job)
        log.info("attempt.started", tenant=tenant, attempt=attempt, pair=pair)
        return Started(attempt=AttemptId(attempt), created=True)

    async def _active(self, connection: Connection, pair: PairId) -> AttemptId:
        active = await connection.fetchval(
            "select id from index_attempt where pair = $1 and kind = 'full' "
            "and status in ('not_started', 'in_progress')",
            pair,
        )
        if active is not None:
            return AttemptId(active)
        if not await connection.fetchval("select true from connector_credential_pair where id = $1", pair):
            raise NotFound(f"no connector has the id {pair}")
        raise Conflict(
            f"the run of connector {pair} could not be started",
            remedy="another one ended just now: try again",
        )

    async def list(
        self, tenant: TenantId, *, pair: PairId | None = None, limit: int = 100
    ) -> Sequence[AttemptView]:
        """The newest attempts first, of one connector or of all."""
        async with self._stores.transaction(tenant) as connection:
            rows = await connection.fetch(
                _VIEW + "where ($1::bigint is null or a.pair = $1) order by a.id desc limit $2", pair, limit
            )
        return [_view(row) for row in rows]

    async def get(self, tenant: TenantId, attempt: AttemptId) -> AttemptView:
        """One attempt; raises NotFound."""
        async with self._stores.transaction(tenant) as connection:
            row = await connection.fetchrow(_VIEW + "where a.id = $1", attempt)
        if row is None:
            raise NotFound(f"no attempt has the id {attempt}")
        return _view(row)

    async def errors(
        self, tenant: TenantId, attempt: AttemptId, *, limit: int = 100
    ) -> Sequence[DocumentError]:
        """The documents that the attempt left out, with the cause of each."""
        return await document_errors.of_attempt(self._stores, tenant, attempt, limit=limit)

    async def cancel(self, tenant: TenantId, attempt: AttemptId, *, client: Client) -> AttemptView:
        """Stop an attempt: its waiting jobs at once, its running ones by their scopes.

        What is indexed already stays. Cancelling a cancelled one changes nothing. Raises NotFound, or
        Conflict when it has ended in another way.
        """
        async with self._stores.transaction(tenant) as connection:
            locked = await lock_attempt(connection, attempt)
            if locked is None:
                raise NotFound(f"no attempt has the id {attempt}")
            if not locked.active and locked.status is not AttemptStatus.CANCELLED:
                raise Conflict(f"attempt {attempt} has ended: {locked.status}")
            if locked.active:
                await connection.execute(
                    "update index_attempt set status = 'cancelled', error = 'cancelled', "
                    "cancel_requested_at = now(), finished_at = now() where id = $1",
                    attempt,
                )
                log.info("attempt.cancelled", tenant=tenant, attempt=attempt)
        await self.stop_work(tenant, attempt, client=client)
        return await self.get(tenant, attempt)

    async def stop_work(self, tenant: TenantId, attempt: AttemptId, *, client: Client) -> None:
        """End the jobs of a cancelled attempt and drop its open batches. Safe to repeat.

        In a transaction after the one that cancelled: batches are locked before attempts everywhere, and the
        cancelled row keeps new batches out already.
        """
        async with self._stores.transaction(tenant) as connection:
            processing = await batches.drop_of_cancelled(connection, attempt)
            fetching = await connection.fetchval("select job from index_attempt where id = $1", attempt)
        await _cancel_jobs(client, tenant, PROCESS_TASK, processing)
        await _cancel_jobs(client, tenant, FETCH_TASK, [] if fetching is None else [MessageId(fetching)])


async def _cancel_jobs(client: Client, tenant: TenantId, task: str, jobs: Sequence[MessageId]) -> None:
    if jobs:
        await client.routes[client.registry.get(task).options.queue].cancel(jobs, tenant=tenant)


_INSERT = """
insert into index_attempt (pair, search_settings, sequence, checkpoint)
select p.id, s.id, coalesce(last.sequence, 0) + 1,
       case when last.status = 'interrupted' and last.search_settings = s.id then last.checkpoint end
from connector_credential_pair p
join search_settings s on s.state = 'present'
left join lateral (
    select sequence, status, checkpoint, search_settings from index_attempt
    where pair = p.id order by id desc limit 1
) last on true
where p.id = $1 and p.state <> 'removing'
on conflict do nothing
returning id
"""

_VIEW = """
select a.id, a.pair, p.name as connector, a.status, a.fetch_outcome, a.error, a.unchanged,
       a.created_at, a.started_at, a.progressed_at, a.finished_at,
       b.total, b.done, b.failed, b.documents, b.documents_new, e.errors,
       j.state as job_state, j.stage as job_stage, j.error_summary as job_error,
       w.running as batches_running, w.pending as batches_pending, w.retrying as batches_retrying,
       w.error as batches_error
from index_attempt a
join connector_credential_pair p on p.id = a.pair
cross join lateral (
    select count(*) as total, count(*) filter (where status = 'done') as done,
           count(*) filter (where status = 'failed') as failed,
           coalesce(sum(documents), 0)::bigint as documents,
           coalesce(sum(documents_new), 0)::bigint as documents_new
    from index_batch where attempt = a.id
) b
cross join lateral (select count(*) as errors from index_error where attempt = a.id) e
left join hive.job j on j.id = a.job and a.finished_at is null
cross join lateral (
    select count(*) filter (where i.state = 'running') as running,
           count(*) filter (where i.state in ('pending', 'scheduled')) as pending,
           count(*) filter (where i.state = 'retrying') as retrying,
           max(i.error_summary) filter (where i.state = 'retrying') as error
    from index_batch o join hive.job i on i.id = o.job
    where o.attempt = a.id and o.status = 'stored' and a.finished_at is null
) w
"""


def _view(row: Row) -> AttemptView:
    values: dict[str, Any] = dict(row)
    return AttemptView(
        id=AttemptId(values["id"]),
        pair=PairId(values["pair"]),
        connector=values["connector"],
        status=AttemptStatus(values["status"]),
        documents_new=values["documents_new"],
        documents_total=values["documents"] + values["unchanged"],
        batches_done=values["done"],
        batches_failed=values["failed"],
        batches_total=values["total"],
        document_errors=values["errors"],
        error=values["error"],
        waiting_for=waiting_for(values) if values["finished_at"] is None else None,
        created_at=values["created_at"],
        started_at=values["started_at"],
        progressed_at=values["progressed_at"],
        finished_at=values["finished_at"],
    )
