"""Messages and deliveries as the scripts' arguments, and back."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from struct import Struct
from typing import Any, Final, TypeVar
from uuid import UUID

from hive.broker.ledger_rows import printable
from hive.broker.port import Delivery, Message, Settlement
from hive.broker.stream_keys import QueueKeys, dedup_key, keys_of, resource_key
from hive.broker.stream_scripts import Argument
from hive.broker.wire import Unparsable, decode
from hive.ids import MessageId, ProcessId, QueueName
from hive.outcomes import Cancelled, Completed, ErrorRecord, Failed, Released, Retrying

ITEMS_PER_CALL: Final = 500  # a script holds up everybody else: about 10 µs an item

# The fixed part of a record, as described in lua/record.lua: state, lane, fence, owner, attempt, crashes,
# deaths, flags, place, published, expires, since, cost, most attempts.
HEAD: Final = Struct(">cBQ16sHBBBQQQQIH")
_MARK: Final = Struct(">16sQc")
_FENCE: Final = Struct(">Q")
_NOBODY: Final = bytes(16)

T = TypeVar("T")


def parts(items: Sequence[T]) -> Iterable[Sequence[T]]:
    """``items`` in pieces that one script may take."""
    return (items[at : at + ITEMS_PER_CALL] for at in range(0, len(items), ITEMS_PER_CALL))


def milliseconds(seconds: float) -> int:
    """Whole milliseconds, at least 1 for anything above 0."""
    return max(1, round(seconds * 1000)) if seconds > 0 else 0


def by_queue(deliveries: Sequence[Delivery]) -> Iterable[tuple[QueueKeys, list[Delivery]]]:
    """Deliveries with their queue's keys."""
    groups: dict[QueueName, list[Delivery]] = {}
    for each in deliveries:
        groups.setdefault(each.queue, []).append(each)
    return ((keys_of(queue), mine) for queue, mine in groups.items())


def claim_arguments(deliveries: Sequence[Delivery]) -> list[Argument]:
    """Id, fence and owner of each: what a write of a delivery is checked by."""
    arguments: list[Argument] = []
    for each in deliveries:
        arguments += (each.id.bytes, _FENCE.pack(each.fence), each.owner.bytes)
    return arguments


def publish_arguments(message: Message, wire: bytes, *, meanwhile: str | None = None) -> tuple[Argument, ...]:
    """What ``publish.lua`` takes for one message. ``meanwhile``: instead of its ``while_running``."""
    return (
        message.id.bytes,
        milliseconds(message.delay_seconds),
        0 if message.expires_seconds is None else milliseconds(message.expires_seconds),
        meanwhile or message.while_running,
        _record(message, wire),
    )


def _record(message: Message, wire: bytes) -> bytes:
    head = HEAD.pack(
        b"w", message.lane + 1, 0, _NOBODY, 0, 0, 0, 0, 0, 0, 0, 0, message.cost, message.max_attempts
    )
    tenant = b"" if message.tenant is None else message.tenant.encode()
    task = message.task.encode()
    key = b"" if message.key is None else dedup_key(message.tenant, message.task, message.key)
    resource = b"" if message.resource is None else resource_key(message.tenant, message.resource)
    return b"".join(
        (
            head,
            b"\0",
            len(tenant).to_bytes(1, "big"),
            tenant,
            len(key).to_bytes(1, "big"),
            key,
            len(resource).to_bytes(1, "big"),
            resource,
            len(task).to_bytes(2, "big"),
            task,
            wire,
        )
    )


def settle_arguments(settlements: Iterable[Settlement]) -> list[Argument]:
    """What ``settle.lua`` takes for the deliveries."""
    marks: list[bytes] = []
    details: list[Argument] = []
    for each in settlements:
        delivery, outcome = each.delivery, each.outcome
        match outcome:
            case Completed():
                word = b"d"
            case Cancelled():
                word = b"x"
            case Released():
                word = b"h"
            case Failed():
                word = b"f"
                details += (0, *_error(outcome.error))
            case Retrying():
                word = b"c" if outcome.crashed else b"t"
                details += (milliseconds(outcome.delay_seconds), *_error(outcome.error))
        marks.append(_MARK.pack(delivery.id.bytes, delivery.fence, word))
    return [b"".join(marks), *details]


def _error(error: ErrorRecord) -> tuple[str, str, str]:
    return error.kind.value, printable(error.code, 200), printable(error.summary, 500)


def deliveries_of(
    answer: Sequence[Any], queue: QueueName, owner: ProcessId
) -> tuple[list[Delivery], list[Argument]]:
    """The deliveries in an answer of ``claim.lua``; and what ``reject.lua`` takes, for the unreadable."""
    deliveries: list[Delivery] = []
    unreadable: list[Argument] = []
    fence: int = answer[3]
    lanes: bytes = answer[4]
    before: dict[int, tuple[int, int]] = {}
    if answer[5]:
        known: list[int] = answer[5]
        before = dict(zip(known[::3], zip(known[1::3], known[2::3], strict=True), strict=True))
    first = (1, 0)
    for at, place in enumerate(range(6, len(answer), 4)):
        raw, entry, published, wire = answer[place : place + 4]
        attempt, redelivered = before.get(at, first)
        try:
            message = decode(wire, queue)
            if message.id.bytes != raw:
                raise Unparsable("its id is not the record's")
        except Unparsable as error:
            unreadable += (raw, _FENCE.pack(fence + at), printable(error.message, 500))
            continue
        deliveries.append(
            Delivery(
                id=message.id,
                queue=queue,
                task=message.task,
                tenant=message.tenant,
                args=message.args,
                lane=message.lane,
                owner=owner,
                fence=fence + at,
                attempt=attempt,
                max_attempts=message.max_attempts,
                key=message.key,
                resource=message.resource,
                cost=message.cost,
                parent=message.parent,
                trace=message.trace,
                receipt=f"{lanes[at] - 49}:{entry.decode()}",
                enqueued_at=datetime.fromtimestamp(published / 1000, UTC),
                redelivered=bool(redelivered),
            )
        )
    return deliveries, unreadable


def message_id(raw: bytes) -> MessageId:
    """An id as the scripts keep it."""
    return MessageId(UUID(bytes=raw))
