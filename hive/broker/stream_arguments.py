"""Messages and deliveries as the scripts' arguments, and back."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Final, TypeVar

from hive.broker.ledger_rows import printable
from hive.broker.port import Delivery, Message, Settlement
from hive.broker.stream_keys import QueueKeys, dedup_key, keys_of
from hive.broker.stream_scripts import Argument
from hive.ids import ProcessId, QueueName
from hive.outcomes import Cancelled, Completed, ErrorRecord, Failed, Released, Retrying

ITEMS_PER_CALL: Final = 500  # a script holds up everybody else: about 10 µs an item

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
        arguments += (each.id.hex, each.fence, each.owner.hex)
    return arguments


def publish_arguments(message: Message, wire: bytes, *, meanwhile: str | None = None) -> tuple[Argument, ...]:
    """What ``publish.lua`` takes for one message. ``meanwhile``: instead of its ``while_running``."""
    key = message.key
    return (
        message.id.hex,
        wire,
        message.lane + 1,
        message.tenant or "",
        "" if key is None else dedup_key(message.tenant, message.task, key),
        meanwhile or message.while_running,
        milliseconds(message.delay_seconds),
        "" if message.expires_seconds is None else milliseconds(message.expires_seconds),
        message.max_attempts,
    )


def settle_arguments(settlement: Settlement) -> tuple[Argument, ...]:
    """What ``settle.lua`` takes for one delivery."""
    delivery, outcome = settlement.delivery, settlement.outcome
    mark = (delivery.id.hex, delivery.fence)
    match outcome:
        case Completed():
            return (*mark, "completed")
        case Cancelled():
            return (*mark, "cancelled")
        case Released():
            return (*mark, "released")
        case Failed():
            return (*mark, "failed", 0, *_error(outcome.error))
        case Retrying():
            word = "crashed" if outcome.crashed else "retrying"
            return (*mark, word, milliseconds(outcome.delay_seconds), *_error(outcome.error))


def _error(error: ErrorRecord) -> tuple[str, str, str]:
    return error.kind.value, printable(error.code, 200), printable(error.summary, 500)


def delivery_of(
    message: Message,
    owner: ProcessId,
    *,
    fence: int,
    attempt: int,
    redelivered: bool,
    receipt: str,
    published_ms: int,
) -> Delivery:
    """A claimed message."""
    return Delivery(
        id=message.id,
        queue=message.queue,
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
        receipt=receipt,
        enqueued_at=datetime.fromtimestamp(published_ms / 1000, UTC),
        redelivered=redelivered,
    )
