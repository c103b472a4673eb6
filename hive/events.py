"""Facts that flow out of the engine: typed events and the bus that carries them.

| event | when |
|---|---|
| JobClaimed | a delivery was claimed and waits for a slot or has one |
| JobStarted | its handler was entered |
| JobSettled | its outcome was written, or refused as stale |
| JobPublished | messages were accepted by a broker |
| ServiceChanged | a supervised service changed its state |
| LeaderChanged | this process became leader, or stopped being it |
| StoreChanged | a store went away or came back |
| LoopStalled | the event loop did not turn for a while |
| FetchExited | a fetch child ended |
| QueueMeasured | the `monitor_queues` tick counted a queue |
| ProviderThrottled | a provider said that it has too much to do |
| SlotWrittenOff | a handler ran past its hard deadline and cannot be ended: its slot is lost until it ends |

Subscribers are plain functions called in turn on the loop; they must return at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from hive.ids import MessageId, QueueName, TenantId
from hive.logger import get_logger

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """The root of all events but those of each message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPublished(Event):
    queue: QueueName
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClaimed(Event):
    pool: str
    queue: QueueName
    count: int


class JobStarted(NamedTuple):
    """Like ``JobSettled`` a tuple, since one is made for each message, in a quarter of the time."""

    pool: str
    queue: QueueName
    task: str
    job: MessageId
    tenant: TenantId | None


class JobSettled(NamedTuple):
    """``outcome``: completed, retrying, throttled, failed, cancelled, released or stale."""

    pool: str
    queue: QueueName
    task: str
    job: MessageId
    tenant: TenantId | None
    outcome: str
    run_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceChanged(Event):
    """``state``: starting, running, backoff, stopped or fatal."""

    service: str
    state: str
    cause: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderChanged(Event):
    leading: bool
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreChanged(Event):
    store: str
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStalled(Event):
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchExited(Event):
    """``exit``: clean, error, out_of_memory, signal, stalled, wall_clock or cancelled."""

    exit: str
    seconds: float
    peak_memory_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWrittenOff(Event):
    """``total``: the pool's lost slots, this one included."""

    pool: str
    queue: QueueName
    task: str
    job: MessageId
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderThrottled(Event):
    provider: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueMeasured(Event):
    """Counts above 10,000 come as 10,001."""

    queue: QueueName
    waiting: int
    delayed: int
    running: int
    oldest_seconds: float | None


AnyEvent = Event | JobStarted | JobSettled
E = TypeVar("E", bound=AnyEvent)


class Events:
    """The bus. One per process; publishing never fails because a subscriber does."""

    def __init__(self) -> None:
        self._subscribers: dict[type[AnyEvent], list[Callable[[AnyEvent], None]]] = {}

    def subscribe(self, kind: type[E], receiver: Callable[[E], None]) -> None:
        """Call ``receiver`` with every later event of exactly this ``kind``."""
        self._subscribers.setdefault(kind, []).append(receiver)  # pyright: ignore[reportArgumentType]

    def heard(self, kind: type[AnyEvent]) -> bool:
        """Whether anybody subscribed to ``kind``. If not, those of each message need not be made."""
        return kind in self._subscribers

    def publish(self, event: AnyEvent) -> None:
        """Hand ``event`` to its subscribers, one after the other. A failing one is logged and skipped."""
        for receiver in self._subscribers.get(type(event), ()):
            try:
                receiver(event)
            except Exception:
                log.exception("event.subscriber_failed", event_kind=type(event).__name__)
