"""What the memory broker keeps of a message, and how it is shown."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hive.broker.port import DeadLetter, Delivery, Message
from hive.ids import ProcessId, TenantId
from hive.outcomes import Cancelled, Completed, ErrorKind, ErrorRecord, Failed, Outcome, Released, Retrying
from hive.states import JobState

EXPIRED: Final = ErrorRecord(
    kind=ErrorKind.EXPIRED, code="expired", summary="it waited longer than its message allowed"
)
WAITING: Final = frozenset({JobState.SCHEDULED, JobState.PENDING, JobState.RETRYING})

Key = tuple[TenantId | None, str, str]


@dataclass(slots=True, kw_only=True)
class Record:
    """One message with all that changes about it."""

    message: Message
    state: JobState
    place: int  # in line: of two messages with the same time, the lower goes first
    run_at: float
    enqueued_at: datetime
    expires_at: float | None
    fence: int = 0
    attempt: int = 0
    owner: ProcessId | None = None
    lease_until: float = 0.0
    child_crashes: int = 0
    hive_crashes: int = 0
    started: bool = False
    rerun: bool = False
    redelivered: bool = False
    cancel_requested: bool = False
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    error: ErrorRecord | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None

    @property
    def key(self) -> Key | None:
        message = self.message
        return None if message.key is None else (message.tenant, message.task, message.key)


def delivery_of(record: Record) -> Delivery:
    """The claim that a running message is under."""
    assert record.owner is not None
    message = record.message
    return Delivery(
        id=message.id,
        queue=message.queue,
        task=message.task,
        tenant=message.tenant,
        args=message.args,
        lane=message.lane,
        owner=record.owner,
        fence=record.fence,
        attempt=record.attempt,
        max_attempts=message.max_attempts,
        key=message.key,
        resource=message.resource,
        cost=message.cost,
        parent=message.parent,
        trace=message.trace,
        enqueued_at=record.enqueued_at,
        redelivered=record.redelivered,
    )


def decide(record: Record, outcome: Outcome, child_limit: int) -> tuple[JobState, ErrorRecord | None]:
    """Where an outcome takes a running message, and with which cause."""
    again = JobState.PENDING if record.rerun else None
    match outcome:
        case Completed():
            return again or JobState.COMPLETED, None
        case Failed():
            return again or JobState.FAILED, outcome.error
        case Cancelled():
            return again or JobState.CANCELLED, None
        case Released():
            return (JobState.CANCELLED if record.cancel_requested else JobState.PENDING), None
        case Retrying():
            error = outcome.error
            if outcome.crashed and record.child_crashes >= child_limit:
                return JobState.FAILED, error_as(ErrorKind.POISON, error)
            if record.cancel_requested:
                return JobState.CANCELLED, None
            if outcome.crashed or not outcome.charged or record.attempt < record.message.max_attempts:
                return JobState.RETRYING, error
            return again or JobState.FAILED, error_as(ErrorKind.EXHAUSTED, error)


def poison(deaths: int) -> ErrorRecord:
    """The cause of a message that hive died of."""
    return ErrorRecord(
        kind=ErrorKind.POISON, code="hive_died", summary=f"hive died {deaths} times while it ran"
    )


def error_as(kind: ErrorKind, error: ErrorRecord) -> ErrorRecord:
    """The same cause under another kind."""
    return ErrorRecord(kind=kind, code=error.code, summary=error.summary)


def dead_letter_of(record: Record) -> DeadLetter:
    """A failed message as a dead letter."""
    assert record.error is not None
    assert record.finished_at is not None
    message = record.message
    return DeadLetter(
        id=message.id,
        queue=message.queue,
        task=message.task,
        tenant=message.tenant,
        args=message.args,
        error=record.error,
        attempts=record.attempt,
        died_at=record.finished_at,
    )
