"""How an attempt ends. Whoever ends last, the fetch or a batch, completes it.

    not_started ──▶ in_progress ──▶ completed | completed_with_errors | failed | interrupted
         └───────────────┴───────▶ cancelled

Each of them, in its own transaction, first writes its part, then locks the attempt's row, then counts. Under
READ COMMITTED the count sees everything that committed before the lock was granted, so of two last batches
the second one sees the first one done. Counting before locking would leave both believing in the other.

The lock is FOR NO KEY UPDATE: it keeps out its own kind and lets in the foreign keys of new batches and
errors. With FOR UPDATE, two batches that had each inserted an error row would wait for each other.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal

from hive.ids import AttemptId
from hive.store.connection import Connection


class AttemptStatus(StrEnum):
    """Where an attempt stands. The values are what the database stores and programs read."""

    NOT_STARTED = "not_started"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    COMPLETED_WITH_ERRORS = "completed_with_errors"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


ACTIVE: Final = frozenset({AttemptStatus.NOT_STARTED, AttemptStatus.IN_PROGRESS})
FetchOutcome = Literal["complete", "failed", "interrupted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedAttempt:
    """An attempt's row, locked until the transaction ends."""

    status: AttemptStatus
    fetch_outcome: FetchOutcome | None
    error: str | None
    next_batch: int

    @property
    def active(self) -> bool:
        return self.status in ACTIVE


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What has become of an attempt's batches and documents so far."""

    open: int
    failed: int
    total: int
    document_errors: int
    batch_error: str | None
    document_error: str | None

    def summary(self) -> str | None:
        """One line about what went wrong, with the first cause of each sort; None when nothing did."""
        parts: list[str] = []
        if self.document_errors:
            noun = "document" if self.document_errors == 1 else "documents"
            parts.append(f"{self.document_errors} {noun} not indexed, the first: {self.document_error}")
        if self.failed:
            parts.append(f"{self.failed} of {self.total} batches failed, the first: {self.batch_error}")
        return "; ".join(parts) or None


async def lock_attempt(connection: Connection, attempt: AttemptId) -> LockedAttempt | None:
    """Lock the attempt until the transaction ends; None when it was deleted."""
    row = await connection.fetchrow(
        "select status, fetch_outcome, error, next_batch from index_attempt where id = $1 for no key update",
        attempt,
    )
    if row is None:
        return None
    return LockedAttempt(
        status=AttemptStatus(row["status"]),
        fetch_outcome=row["fetch_outcome"],
        error=row["error"],
        next_batch=row["next_batch"],
    )


async def end_fetch(
    connection: Connection, attempt: AttemptId, outcome: FetchOutcome, *, cause: str | None = None
) -> None:
    """Note that nothing more will be fetched, and why. The attempt must be locked and active."""
    await connection.execute(
        "update index_attempt set fetch_outcome = $2, error = coalesce($3, error), progressed_at = now() "
        "where id = $1 and fetch_outcome is null",
        attempt,
        outcome,
        cause,
    )


async def complete_if_finished(connection: Connection, attempt: AttemptId) -> AttemptStatus | None:
    """Complete the attempt if its fetch and all its batches have ended; returns the final status if so.

    Call it at the end of the transaction, after its own writes: it locks the attempt (again, at no cost).
    """
    locked = await lock_attempt(connection, attempt)
    if locked is None or not locked.active or locked.fetch_outcome is None:
        return None
    tally = await _tally(connection, attempt)
    if tally.open:
        return None
    status = _final(locked.fetch_outcome, tally)
    error = locked.error if locked.error is not None else tally.summary()
    await connection.execute(
        "update index_attempt set status = $2, error = $3, finished_at = now(), "
        "started_at = coalesce(started_at, now()) where id = $1",
        attempt,
        status,
        error,
    )
    return status


def _final(outcome: FetchOutcome, tally: Tally) -> AttemptStatus:
    if outcome == "failed" or (tally.total and tally.failed == tally.total):
        return AttemptStatus.FAILED
    if outcome == "interrupted":
        return AttemptStatus.INTERRUPTED
    if tally.failed or tally.document_errors:
        return AttemptStatus.COMPLETED_WITH_ERRORS
    return AttemptStatus.COMPLETED


async def _tally(connection: Connection, attempt: AttemptId) -> Tally:
    batches = await connection.fetchrow(
        "select count(*) as total, count(*) filter (where status = 'stored') as open, "
        "count(*) filter (where status = 'failed') as failed, "
        "(select error from index_batch where attempt = $1 and status = 'failed' "
        "order by number limit 1) as error from index_batch where attempt = $1",
        attempt,
    )
    errors = await connection.fetchrow(
        "select count(*) as total, (select coalesce(link || ': ', '') || summary from index_error "
        "where attempt = $1 order by id limit 1) as first from index_error where attempt = $1",
        attempt,
    )
    assert batches is not None
    assert errors is not None
    return Tally(
        open=batches["open"],
        failed=batches["failed"],
        total=batches["total"],
        document_errors=errors["total"],
        batch_error=batches["error"],
        document_error=errors["first"],
    )
