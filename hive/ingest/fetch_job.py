"""The fetch job: a child reads the source, and what it yields is stored batch by batch.

    child ── BatchReady ──▶ one transaction: job held by its fence ▸ attempt locked ▸ batch rows ▸ their
                            process jobs ▸ document errors ▸ checkpoint ▸ counts

So after any death the same attempt goes on from its last checkpoint: nothing before it is lost, nothing after
it was stored. A fetch that was taken over is refused by its fence and writes nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, assert_never

import anyio

from hive.context import Context
from hive.errors import HandedBack, Transient
from hive.ids import AttemptId, PairId, TenantId
from hive.ingest import batches, document_errors, documents
from hive.ingest.attempts import PROCESS_TASK
from hive.ingest.cleaning import clean_json
from hive.ingest.completion import (
    FetchOutcome,
    LockedAttempt,
    complete_if_finished,
    end_fetch,
    lock_attempt,
)
from hive.ingest.connectors import catalogue
from hive.ingest.fencing import hold
from hive.ingest.fetching import (
    BatchReady,
    CheckpointReached,
    DocumentFailed,
    FetchDone,
    FetchFailed,
    FetchLimits,
    FetchRequest,
    FetchSession,
    ParsedDocument,
    Progressed,
    Question,
)
from hive.ingest.services import IngestServices
from hive.ingest.waiting import CATCHING_UP
from hive.logger import get_logger
from hive.store.connection import Connection

log = get_logger(__name__)

FIRST_POLL_SECONDS: Final = 0.05
LONGEST_POLL_SECONDS: Final = 0.5


class SourceUnavailable(Transient):
    """The source could not be read just now."""

    code = "source_unavailable"


class _Ended(Exception):
    """The attempt is not active any more: cancelled, or removed. Nothing more is to be done for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    pair: PairId
    request: FetchRequest
    limits: FetchLimits


class FetchJob:
    """One run of the fetch job of ``attempt``."""

    def __init__(
        self, context: Context, services: IngestServices, tenant: TenantId, attempt: AttemptId
    ) -> None:
        self._context = context
        self._services = services
        self._tenant = tenant
        self._attempt = attempt
        self._settings = services.settings.fetch
        self._documents = 0

    async def run(self) -> None:
        """Fetch until the source is read, has failed, or the job must make room.

        Raises SourceUnavailable (to be tried again), HandedBack (asked to stop), ChildDied (charged to the
        job's crash budget), LeaseLost. Cancellation ends the child; what is stored stays.
        """
        try:
            plan = await self._begin()
            if plan is not None:
                await self._fetch(plan)
        except _Ended:
            log.info("fetch.ended_early", attempt=self._attempt)

    async def _begin(self) -> _Plan | None:
        """Mark the attempt as started, and gather what the child is told. None: there is nothing to do."""
        async with self._context.connection() as connection:
            await self._locked(connection)
            row = await connection.fetchrow(
                "update index_attempt set status = 'in_progress', started_at = coalesce(started_at, now()) "
                "where id = $1 and fetch_outcome is null returning pair, checkpoint",
                self._attempt,
            )
        if row is None:
            return None
        pair = PairId(row["pair"])
        source = await self._services.pairs.source(self._tenant, pair)
        settings = self._services.settings
        max_document_bytes = settings.documents.max_file_mb * 1024 * 1024
        config = catalogue.prepared(
            source.kind,
            source.config,
            roots=self._services.file_roots(),
            refused=[settings.process.state_dir],
            web=settings.connectors.web,
            max_document_bytes=max_document_bytes,
        )
        request = FetchRequest(
            kind=source.kind,
            config=config,
            credential=source.credential,
            checkpoint=row["checkpoint"],
            batch_documents=self._settings.batch_documents,
            batch_bytes=self._settings.batch_bytes,
            max_document_bytes=max_document_bytes,
            chunk_characters=settings.documents.chunk_characters,
            chunk_overlap_characters=settings.documents.chunk_overlap_characters,
        )
        limits = FetchLimits(
            memory_bytes=self._settings.memory_mb * 1024 * 1024,
            stall_seconds=self._settings.stall_seconds,
            wall_seconds=self._settings.wall_seconds,
        )
        return _Plan(pair=pair, request=request, limits=limits)

    async def _fetch(self, plan: _Plan) -> None:
        async with self._services.fetcher.open(plan.request, plan.limits) as session:
            end = await self._watched(session, plan.pair)
        await self._end(end)

    async def _watched(self, session: FetchSession, pair: PairId) -> FetchDone | FetchFailed:
        """Read the session while passing on the wish to stop."""
        last: list[FetchDone | FetchFailed] = []
        try:
            async with anyio.create_task_group() as watch:
                watch.start_soon(self._pass_on_stop, session)
                last.append(await self._read(session, pair))
                watch.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # The watcher raises nothing: what is in the group is the one error of the reading beside it.
            if len(group.exceptions) == 1:
                raise group.exceptions[0] from None
            raise
        return last[0]

    async def _pass_on_stop(self, session: FetchSession) -> None:
        await self._context.stopping.wait()
        session.stop_soon()

    async def _read(self, session: FetchSession, pair: PairId) -> FetchDone | FetchFailed:
        """Store what the child yields until its last frame, which is returned."""
        async for frame in session.frames():
            match frame:
                case BatchReady():
                    await self._store(frame.documents, frame.failures, frame.checkpoint, frame.unchanged)
                    await self._catch_up()
                case CheckpointReached():
                    await self._store((), frame.failures, frame.checkpoint, frame.unchanged)
                case Question():
                    await session.answer(await self._known(pair, frame.source_ids))
                case Progressed():
                    await self._context.progress("fetching", done=self._documents)
                case FetchDone() | FetchFailed():
                    return frame
                case _:
                    assert_never(frame)
        raise SourceUnavailable("the fetch child ended without a last word")

    async def _known(self, pair: PairId, source_ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        async with self._context.connection() as connection:
            return await documents.known(connection, pair, source_ids)

    async def _store(
        self,
        parsed: Sequence[ParsedDocument],
        failures: Sequence[DocumentFailed],
        checkpoint: Any,
        unchanged: int,
    ) -> None:
        """Store a batch with its checkpoint, in one transaction."""
        packing = await batches.pack(parsed, max_bytes=self._settings.batch_bytes)
        oversize = [
            document_errors.failure(document, "too_large", "its text is larger than a batch may be")
            for document in packing.oversize
        ]
        async with self._context.connection() as connection:
            attempt = await self._locked(connection)
            for number, packed in enumerate(packing.batches, start=attempt.next_batch):
                await self._store_batch(connection, number, packed)
            await document_errors.record(connection, self._attempt, [*failures, *oversize])
            await connection.execute(
                "update index_attempt set next_batch = next_batch + $2, "
                "checkpoint = coalesce($3, checkpoint), unchanged = unchanged + $4, progressed_at = now() "
                "where id = $1",
                self._attempt,
                len(packing.batches),
                clean_json(checkpoint),
                unchanged,
            )
        self._documents += len(parsed) + unchanged
        await self._context.progress("fetching", done=self._documents)

    async def _store_batch(self, connection: Connection, number: int, packed: batches.Packed) -> None:
        client = self._context.client
        batch = await batches.insert(connection, self._attempt, number, packed)
        job = await client.enqueue(
            client.registry.get(PROCESS_TASK),
            {"attempt": self._attempt, "batch": batch},
            connection=connection,
            tenant=self._tenant,
            key=f"batch:{batch}",
            parent=self._context.id,
        )
        await batches.set_job(connection, batch, job)

    async def _catch_up(self) -> None:
        """Back-pressure: wait while too many batches are unprocessed. The child waits with us."""
        pause = FIRST_POLL_SECONDS
        said = False
        while not self._context.stopping.is_set():
            async with self._context.connection() as connection:
                waiting = await batches.open_count(connection, self._attempt)
            if waiting < self._settings.unprocessed_batches:
                return
            if not said:
                await self._context.progress(CATCHING_UP, done=self._documents)
                said = True
            with anyio.move_on_after(pause):
                await self._context.stopping.wait()
            pause = min(2 * pause, LONGEST_POLL_SECONDS)

    async def _locked(self, connection: Connection) -> LockedAttempt:
        """Hold the job and lock the attempt; raises LeaseLost, or _Ended when the attempt is not active."""
        await hold(connection, self._context.delivery)
        attempt = await lock_attempt(connection, self._attempt)
        if attempt is None or not attempt.active:
            raise _Ended
        return attempt

    async def _end(self, end: FetchDone | FetchFailed) -> None:
        """Write how the fetch ended, and with it the job, in one transaction."""
        match end:
            case FetchDone(complete=True):
                await self._finish("complete")
            case FetchDone():
                if not self._context.stopping.is_set():
                    raise SourceUnavailable("the connector stopped before its end")
                raise HandedBack
            case FetchFailed(transient=True) if self._may_try_again():
                raise SourceUnavailable(end.summary, retry_after_seconds=end.retry_after_seconds)
            case FetchFailed():
                await self._finish("failed", cause=f"{end.code}: {end.summary}")
            case _:
                assert_never(end)

    def _may_try_again(self) -> bool:
        return self._context.attempt < self._context.delivery.max_attempts

    async def _finish(self, outcome: FetchOutcome, *, cause: str | None = None) -> None:
        async with self._context.transaction() as connection:
            attempt = await lock_attempt(connection, self._attempt)
            if attempt is None or not attempt.active:
                return
            await end_fetch(connection, self._attempt, outcome, cause=cause)
            status = await complete_if_finished(connection, self._attempt)
        log.info("fetch.ended", attempt=self._attempt, outcome=outcome, status=status)
