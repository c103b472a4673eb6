"""What the API says: one model per thing, made from hive's own values. Times are UTC, ISO 8601."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from hive.broker.port import DeadLetter, Depth, JobView
from hive.ingest.attempts import AttemptView
from hive.ingest.document_errors import DocumentError as Left
from hive.ingest.index.search import SearchHit
from hive.ingest.pairs import PairView
from hive.outcomes import ErrorRecord
from hive.store.tenants import Tenant as StoredTenant
from pools.run import RunningJob as JobInHand

COUNTED_TO = 10_000


class Said(BaseModel):
    """An answer."""

    model_config = ConfigDict(frozen=True)


class Health(Said):
    """``reasons``: why not, in words; empty when all is well."""

    ok: bool
    reasons: list[str]


class Tenant(Said):
    id: str
    state: str
    weight: int
    timezone: str
    created_at: datetime

    @classmethod
    def of(cls, tenant: StoredTenant) -> "Tenant":
        return cls(
            id=tenant.id,
            state=tenant.state,
            weight=tenant.weight,
            timezone=tenant.timezone,
            created_at=tenant.created_at,
        )


class Connector(Said):
    """``state``: active, paused or removing. ``last_…`` is null before the first attempt."""

    id: int
    name: str
    kind: str
    state: str
    config: dict[str, Any]
    has_credential: bool
    refresh_seconds: int
    documents: int
    last_attempt: int | None
    last_status: str | None
    created_at: datetime

    @classmethod
    def of(cls, pair: PairView) -> "Connector":
        return cls(
            id=pair.id,
            name=pair.name,
            kind=pair.kind,
            state=pair.state,
            config=dict(pair.config),
            has_credential=pair.has_credential,
            refresh_seconds=pair.refresh_seconds,
            documents=pair.documents,
            last_attempt=pair.last_attempt,
            last_status=pair.last_status,
            created_at=pair.created_at,
        )


class AttemptAsked(Said):
    """``attempt``: the one that was started, or the one under way."""

    attempt: int


class Attempt(Said):
    """``connector`` is its name. Batches get more while it reads; ``waiting_for``: why it does not move."""

    id: int
    connector: str
    connector_id: int
    status: str
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

    @classmethod
    def of(cls, attempt: AttemptView) -> "Attempt":
        return cls(
            id=attempt.id,
            connector=attempt.connector,
            connector_id=attempt.pair,
            status=attempt.status,
            documents_new=attempt.documents_new,
            documents_total=attempt.documents_total,
            batches_done=attempt.batches_done,
            batches_failed=attempt.batches_failed,
            batches_total=attempt.batches_total,
            document_errors=attempt.document_errors,
            error=attempt.error,
            waiting_for=attempt.waiting_for,
            created_at=attempt.created_at,
            started_at=attempt.started_at,
            progressed_at=attempt.progressed_at,
            finished_at=attempt.finished_at,
        )


class DocumentError(Said):
    """One document that could not be read. ``document`` is the source's own id."""

    document: str | None
    link: str | None
    code: str
    summary: str
    created_at: datetime

    @classmethod
    def of(cls, error: Left) -> "DocumentError":
        return cls(
            document=error.document,
            link=error.link,
            code=error.code,
            summary=error.summary,
            created_at=error.created_at,
        )


class Cancelled(Said):
    """``cancelled`` is false when it had ended already."""

    cancelled: bool


class Removed(Said):
    """``removed`` is false when it goes on in the background, in state ``removing``."""

    id: int
    removed: bool
    documents: int | None


class Queue(Said):
    """``waiting`` and its neighbours are exact to 10,000; ``more`` says that one of them is larger."""

    queue: str
    broker: str
    pool: str | None
    slots: int
    waiting: int
    delayed: int
    running: int
    more: bool
    oldest_seconds: float | None

    @classmethod
    def of(cls, depth: Depth, *, broker: str, pool: str | None, slots: int) -> "Queue":
        counts = (depth.waiting, depth.delayed, depth.running)
        return cls(
            queue=depth.queue,
            broker=broker,
            pool=pool,
            slots=slots,
            waiting=min(depth.waiting, COUNTED_TO),
            delayed=min(depth.delayed, COUNTED_TO),
            running=min(depth.running, COUNTED_TO),
            more=any(count > COUNTED_TO for count in counts),
            oldest_seconds=depth.oldest_seconds,
        )


class Cause(Said):
    """Why something was given up. ``kind`` is one of hive's error kinds, ``code`` a short stable word."""

    kind: str
    code: str
    summary: str

    @classmethod
    def of(cls, error: ErrorRecord) -> "Cause":
        return cls(kind=error.kind, code=error.code, summary=error.summary)


class Job(Said):
    id: str
    queue: str
    task: str
    tenant: str | None
    state: str
    lane: Literal["high", "normal", "low"]
    attempt: int
    max_attempts: int
    stage: str | None
    done: int | None
    total: int | None
    error: Cause | None
    owner: str | None
    args: dict[str, Any]
    enqueued_at: datetime | None
    run_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None

    @classmethod
    def of(cls, job: JobView) -> "Job":
        return cls(
            id=str(job.id),
            queue=job.queue,
            task=job.task,
            tenant=job.tenant,
            state=job.state,
            lane=("high", "normal", "low")[job.lane],
            attempt=job.attempt,
            max_attempts=job.max_attempts,
            stage=job.stage,
            done=job.done,
            total=job.total,
            error=None if job.error is None else Cause.of(job.error),
            owner=None if job.owner is None else str(job.owner),
            args=dict(job.args),
            enqueued_at=job.enqueued_at,
            run_at=job.run_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
        )


class Dead(Said):
    """A message that was given up. ``args`` is null when it could not be read."""

    id: str
    queue: str
    task: str
    tenant: str | None
    kind: str
    code: str
    summary: str
    attempts: int
    args: dict[str, Any] | None
    died_at: datetime

    @classmethod
    def of(cls, letter: DeadLetter) -> "Dead":
        return cls(
            id=str(letter.id),
            queue=letter.queue,
            task=letter.task,
            tenant=letter.tenant,
            kind=letter.error.kind,
            code=letter.error.code,
            summary=letter.error.summary,
            attempts=letter.attempts,
            args=None if letter.args is None else dict(letter.args),
            died_at=letter.died_at,
        )


class Replayed(Said):
    replayed: int


class Purged(Said):
    purged: int


class Enqueued(Said):
    """``id``: the new message's, or the waiting one's that holds the same key."""

    id: str


class Result(Said):
    """A document that was found. ``score`` can be compared within one answer only."""

    title: str
    link: str
    snippet: str
    score: float
    heading: str

    @classmethod
    def of(cls, hit: SearchHit) -> "Result":
        return cls(title=hit.title, link=hit.link, snippet=hit.snippet, score=hit.score, heading=hit.heading)


class Results(Said):
    """``degraded``: the model server was away, so only words were compared."""

    items: list[Result]
    degraded: bool


class RunningJob(Said):
    """``state``: waiting (prefetched), running, stopping, stuck or settling."""

    id: str
    task: str
    queue: str
    tenant: str | None
    attempt: int
    state: str
    seconds: float

    @classmethod
    def of(cls, job: JobInHand) -> "RunningJob":
        return cls(
            id=str(job.job),
            task=job.task,
            queue=job.queue,
            tenant=job.tenant,
            attempt=job.attempt,
            state=job.state,
            seconds=round(job.seconds, 3),
        )


class Pool(Said):
    """``ready``: it is consuming. ``lost``: slots whose handler does not end. ``running``: longest first."""

    pool: str
    slots: int
    busy: int
    lost: int
    ready: bool
    queues: list[str]
    running: list[RunningJob]


class Service(Said):
    """``stale``: it runs, but has finished no round of work for three of its periods."""

    service: str
    state: str
    critical: bool
    restarts: int
    since_seconds: float
    pulse_age_seconds: float | None
    stale: bool
    cause: str | None


class Draining(Said):
    draining: bool
