"""Messages and deliveries as the scripts' arguments, and back."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from struct import Struct
from typing import Any, Final, TypeVar

from asyncpg.pgproto.pgproto import UUID

from hive.broker.ledger_rows import printable
from hive.broker.port import Delivery, Lane, Message, Settlement
from hive.broker.stream_keys import QueueKeys, dedup_key, keys_of, resource_key
from hive.broker.stream_link import Argument
from hive.broker.wire import Unparsable, decode, plain_fields
from hive.ids import MessageId, ProcessId, QueueName
from hive.outcomes import Cancelled, Completed, ErrorRecord, Failed, Released, Retrying

ITEMS_PER_CALL: Final = 500  # a script holds up everybody else: about 10 µs an item

# The changing part of a record, as described in lua/record.lua: state, lane, fence, owner, attempt, crashes,
# deaths, flags, place, published, expires, since, cost, most attempts, traits, where the wire format begins,
# entry.
HEAD: Final = Struct(">cBQ16sHBBBQQQQIHBHB41s")
REDELIVERED: Final = 2
_LATEST: Final = 32_503_680_000_000  # the year 3000: a foreign record may hold any number
_MARK: Final = Struct(">16sQc")
_FENCE: Final = Struct(">Q")
_NOBODY: Final = bytes(16)
_LANES: Final = {lane + 1: lane for lane in Lane}

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
    tenant = b"" if message.tenant is None else message.tenant.encode()
    task = message.task.encode()
    key = b"" if message.key is None else dedup_key(message.tenant, message.task, message.key)
    resource = b"" if message.resource is None else resource_key(message.tenant, message.resource)
    traits = (message.expires_seconds is not None) + 2 * bool(key) + 4 * bool(resource)
    head = _head((message.lane, message.cost, message.max_attempts, traits, tenant, task))
    if not traits & 6:
        return head + wire
    return b"".join(
        (
            head[: HEAD.size - 44],
            (HEAD.size + 6 + len(tenant) + len(key) + len(resource) + len(task)).to_bytes(2, "big"),
            bytes(42),
            *_with_length(tenant, key, resource),
            len(task).to_bytes(2, "big"),
            task,
            wire,
        )
    )


@lru_cache(maxsize=10_000)
def _head(fields: tuple[int, int, int, int, bytes, bytes]) -> bytes:
    """All of a record without key and resource but its wire format."""
    lane, cost, most, traits, tenant, task = fields
    begins = HEAD.size + 6 + len(tenant) + len(task)
    head = HEAD.pack(b"w", lane + 1, 0, _NOBODY, 0, 0, 0, 0, 0, 0, 0, 0, cost, most, traits, begins, 0, b"")
    return b"".join((head, *_with_length(tenant, b"", b""), len(task).to_bytes(2, "big"), task))


def _with_length(*texts: bytes) -> Iterable[bytes]:
    return (len(each).to_bytes(1, "big") + each for each in texts)


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
                word = b"c" if outcome.crashed else b"t" if outcome.charged else b"w"
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
    stamp, stamped = -1, None
    for raw, record in zip(answer[3::2], answer[4::2], strict=True):
        _, lane, fence, _, attempt, _, _, flags, _, published, _, _, cost, most, _, begins, _, _ = (
            HEAD.unpack_from(record)
        )
        if published != stamp:
            stamp, stamped = published, datetime.fromtimestamp(min(published, _LATEST) / 1000, UTC)
        wire = record[begins - 1 :]
        redelivered = flags & REDELIVERED != 0
        plain = plain_fields(wire)
        if plain is not None and plain[0] == raw.hex() and cost == 1 and most == 4:
            _, task, tenant, args = plain
            # By place: names take twice as long, and this runs for each message.
            deliveries.append(
                Delivery(
                    *(message_id(raw), queue, task, tenant, args, _LANES.get(lane, Lane.NORMAL)),
                    *(owner, fence, attempt, 4, None, None, 1, None, None, "", stamped, redelivered),
                )
            )
            continue
        try:
            message = decode(wire, queue)
            if message.id.bytes != raw:
                raise Unparsable("its id is not the record's")
        except Unparsable as error:
            unreadable += (raw, _FENCE.pack(fence), printable(error.message, 500))
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
                fence=fence,
                attempt=attempt,
                max_attempts=message.max_attempts,
                key=message.key,
                resource=message.resource,
                cost=message.cost,
                parent=message.parent,
                trace=message.trace,
                enqueued_at=stamped,
                redelivered=redelivered,
            )
        )
    return deliveries, unreadable


def message_id(raw: bytes) -> MessageId:
    """An id as the scripts keep it. In asyncpg's own kind of ``uuid.UUID``, made in a sixth of the time."""
    return MessageId(UUID(raw))
