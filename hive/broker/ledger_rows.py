"""Rows of the ledger as the contract's values, and back."""

from collections.abc import Sequence
from json import JSONDecoder
from typing import Any, Final, cast

from hive.broker.port import Arguments, DeadLetter, Delivery, JobView, Lane, Message, Settlement
from hive.broker.wire import Unparsable, check, text_of
from hive.errors import InvalidInput
from hive.ids import MessageId, ProcessId, QueueName
from hive.outcomes import (
    Cancelled,
    Completed,
    ErrorKind,
    ErrorRecord,
    ExitDetail,
    Failed,
    Released,
    Retrying,
)
from hive.states import JobState
from hive.store.connection import Row
from hive.tenancy import parse_tenant

Columns = tuple[list[Any], ...]
_DECODER: Final = JSONDecoder()
_NOTHING: Final = (None,) * 6
_LANES: Final = tuple(Lane)  # calling an enumeration costs more than all the rest of a column


def message_columns(messages: Sequence[Message], woken: Sequence[QueueName]) -> tuple[Any, ...]:
    """What both publish queries take; raises InvalidInput for a message no carrier could hold.

    Most batches are of one task for one tenant: what is the same for all is sent, checked and read once.
    ``woken``: the queues whose waiters are told.
    """
    ids, args, *columns = zip(*messages, strict=True)
    arrays: list[Sequence[Any]] = []
    shared: list[Any] = []
    for column in ([text_of(each) for each in args], *columns):
        first = column[0]
        same = column.count(first) == len(column)
        arrays.append(() if same else column)
        shared.append(first if same else None)
    for each in messages if any(arrays[1:]) else messages[:1]:
        check(each)
    return ids, *arrays, *shared, woken


def claim_columns(deliveries: Sequence[Delivery]) -> tuple[list[MessageId], list[int], list[ProcessId]]:
    """Ids, fences and owners: what a write of a delivery is checked by."""
    return (
        [each.id for each in deliveries],
        [each.fence for each in deliveries],
        [each.owner for each in deliveries],
    )


def settlement_columns(settlements: Sequence[Settlement]) -> Columns:
    """The arrays that the settle query takes."""
    return tuple(list(column) for column in zip(*map(_settlement_row, settlements), strict=True))


def _settlement_row(settlement: Settlement) -> tuple[Any, ...]:
    delivery, outcome = settlement.delivery, settlement.outcome
    if isinstance(outcome, Completed):
        return (delivery.id, delivery.fence, delivery.owner, "completed", 0.0, *_NOTHING)
    delay: float = 0.0
    error: ErrorRecord | None = None
    exit: ExitDetail | None = None
    summary: str | None = None
    match outcome:
        case Retrying():
            word = "crashed" if outcome.crashed else "retrying" if outcome.charged else "throttled"
            delay, error, exit = outcome.delay_seconds, outcome.error, outcome.exit
        case Failed():
            word, error, exit = "failed", outcome.error, outcome.exit
        case Cancelled():
            word, summary = "cancelled", printable(outcome.reason, 500)
        case Released():
            word, summary = "released", printable(outcome.reason, 500)
    return (
        delivery.id,
        delivery.fence,
        delivery.owner,
        word,
        max(0.0, delay),
        error.kind.value if error else None,
        printable(error.code, 200) if error else None,
        printable(error.summary, 500) if error else summary,
        exit.exit if exit else None,
        exit.signal if exit else None,
        exit.peak_memory_bytes if exit else None,
    )


def printable(text: str, longest: int) -> str:
    """``text`` as Postgres can store it: no NUL, no half of a surrogate pair, not too long."""
    return text.replace("\x00", "\ufffd").encode("utf-8", "replace").decode()[:longest]


def arguments_of(text: str) -> Arguments:
    """The arguments in a row; raises Unparsable. Postgres holds JSON that Python does not read."""
    if text == "{}":
        return {}
    try:
        args = _DECODER.decode(text)
    except RecursionError:
        raise Unparsable("args: nested too deeply") from None
    except ValueError as error:
        raise Unparsable(f"args: {error}") from None
    if not isinstance(args, dict):
        raise Unparsable("args: not a JSON object")
    return cast("Arguments", args)


def _shown(text: str) -> Arguments | None:
    try:
        return arguments_of(text)
    except Unparsable:
        return None


def delivery_of(row: Row, queue: QueueName, owner: ProcessId) -> Delivery:
    """A row of the claim query; raises Unparsable for one that hive could not have written.

    By the places of its columns, since names cost twice as much.
    """
    values = tuple(row.values())
    id, task, tenant, args, lane, fence, attempt, max_attempts = values[:8]
    key, resource, cost, parent, trace, enqueued_at, redelivered = values[8:15]
    if tenant is not None:
        try:
            parse_tenant(tenant)
        except InvalidInput as error:
            raise Unparsable(str(error)) from None
    return Delivery(
        id=id,
        queue=queue,
        task=task,
        tenant=tenant,
        args=arguments_of(args),
        lane=_LANES[lane],
        owner=owner,
        fence=fence,
        attempt=attempt,
        max_attempts=max_attempts,
        key=key,
        resource=resource,
        cost=cost,
        parent=parent,
        trace=trace,
        enqueued_at=enqueued_at,
        redelivered=redelivered,
    )


def view_of(row: Row) -> JobView:
    """A row of the queries that show jobs."""
    return JobView(
        id=row["id"],
        queue=row["queue"],
        task=row["task"],
        tenant=row["tenant"],
        state=JobState(row["state"]),
        lane=Lane(row["lane"]),
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        stage=row["stage"],
        done=row["done"],
        total=row["total"],
        error=error_of(row) if row["error_kind"] is not None else None,
        owner=row["owner"],
        enqueued_at=row["created_at"],
        run_at=row["run_at"],
        started_at=row["started_at"],
        finished_at=row["finished_at"],
        args=_shown(row["args"]) or {},
    )


def dead_letter_of(row: Row) -> DeadLetter:
    """A failed job as a dead letter."""
    return DeadLetter(
        id=row["id"],
        queue=row["queue"],
        task=row["task"],
        tenant=row["tenant"],
        args=_shown(row["args"]),
        error=error_of(row),
        attempts=row["attempt"],
        died_at=row["finished_at"],
    )


def error_of(row: Row) -> ErrorRecord:
    """The cause that stands in a row's ``error_…`` columns."""
    return ErrorRecord(
        kind=ErrorKind(row["error_kind"]), code=row["error_code"] or "", summary=row["error_summary"] or ""
    )
