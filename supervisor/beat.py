"""Beat: the scheduler of periodic ticks, run by the leader.

A heap holds one entry for each schedule, and for each tenant where the task is a tenant's. What is due is
published in bulk as idempotent messages: one waiting per schedule and tenant (the key), dropped beside a
running one, expiring by themselves. So a tick sent twice, by two leaders or after a lost answer, costs
nothing, and a tick that was missed is simply the next one.

::

    due ──publish──▶ due + period   (moved past now: what was missed meanwhile is one tick, not many)
     ▲    │ store away
     └────┘ stays due, tried again every second
"""

import heapq
import itertools
import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from hive.broker.port import Message
from hive.client import Client
from hive.clock import Clock
from hive.errors import QueueFull, StoreDown
from hive.ids import QueueName, TenantId
from hive.logger import get_logger
from hive.pulse import Pulse
from hive.settings import Beat as BeatSettings
from hive.tasks import Registry, Task

log = get_logger(__name__)

BATCH = 500  # ticks published in one call
FIRST_ROUND_PER_SECOND = 200  # new entries are spread so that thousands of tenants do not fire at once
AWAY_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 5.0

TenantSource = Callable[[], Awaitable[Collection[TenantId]]]
"""Reads the active tenants; raises ``StoreDown``."""


class Timetable(Protocol):
    """When a schedule is due. Intervals today; cron expressions fit the same two questions."""

    def first(self, now: float, position: float) -> float:
        """When a new entry is due; ``position`` (0 to 1) is its place among those added with it."""
        ...

    def following(self, due: float, now: float) -> float:
        """The first time after ``now`` in the series that ``due`` belongs to."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Every so many seconds; the first time at once, spread over ``spread_seconds`` at the most."""

    period_seconds: float
    spread_seconds: float = 0.0

    def first(self, now: float, position: float) -> float:
        return now + position * min(self.spread_seconds, self.period_seconds)

    def following(self, due: float, now: float) -> float:
        missed = math.floor(max(0.0, now - due) / self.period_seconds)
        return due + (missed + 1) * self.period_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A registered task and how often it is told to look for work."""

    task: Task[Any]
    period_seconds: float

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def per_tenant(self) -> bool:
        return self.task.options.scope == "tenant"


def schedules_of(
    periods: Mapping[str, float], registry: Registry, queues: Collection[QueueName]
) -> list[Schedule]:
    """The schedules that can be kept: a period above 0, the task registered, its queue carried."""
    kept: list[Schedule] = []
    for name, seconds in periods.items():
        if seconds <= 0:
            continue
        if name not in registry:
            log.warning("beat.task_not_registered", schedule=name)
            continue
        task = registry.get(name)
        if task.options.queue not in queues:
            log.warning("beat.queue_not_carried", schedule=name, queue=task.options.queue)
            continue
        kept.append(Schedule(task=task, period_seconds=seconds))
    return kept


@dataclass(frozen=True, slots=True)
class _Entry:
    schedule: Schedule
    tenant: TenantId | None

    @property
    def key(self) -> tuple[str, TenantId | None]:
        return self.schedule.name, self.tenant


class Beat:
    """Publishes the ticks. Hand ``run`` to ``Leadership.while_leading``.

    ``tenants`` is asked every ``settings.tenants_reload_seconds``, and at once after ``tenants_changed``.
    ``pulse`` is beaten by every round, one that found the store away included.
    """

    def __init__(
        self,
        schedules: Sequence[Schedule],
        *,
        client: Client,
        tenants: TenantSource,
        settings: BeatSettings,
        clock: Clock,
    ) -> None:
        self._schedules = tuple(schedules)
        self._client = client
        self._tenants = tenants
        self._settings = settings
        self._clock = clock
        self._period_factor = settings.period_factor
        self.pulse = Pulse(clock, LONGEST_WAIT_SECONDS * 2)
        self.published_at: dict[str, float] = {}
        """When each schedule was last published, on the clock: what the watchdog looks at."""
        self._wake = anyio.Event()
        self._forget()

    def _forget(self) -> None:
        self._heap: list[tuple[float, int, _Entry]] = []
        self._order = itertools.count()
        # The one valid entry of each schedule and tenant: one that left and came back has older ones too.
        self._valid: dict[tuple[str, TenantId | None], int] = {}
        self._known: frozenset[TenantId] = frozenset()
        self._reload_at = float("-inf")
        self._system_added = False

    @property
    def period_factor(self) -> float:
        """Every period is multiplied by this; may be set while beat runs."""
        return self._period_factor

    @period_factor.setter
    def period_factor(self, factor: float) -> None:
        if factor <= 0:
            raise ValueError("a period factor is above 0")
        self._period_factor = factor
        self._forget()  # the heap is in terms of the old one; a full round costs one message a schedule
        self._wake.set()

    def tenants_changed(self) -> None:
        """Read the list of tenants again at once: one was added, suspended or removed."""
        self._reload_at = float("-inf")
        self._wake.set()

    async def run(self, term: int) -> None:
        """Publish what is due, until cancelled. Each leadership begins with a full round."""
        log.info("beat.started", term=term, schedules=len(self._schedules))
        self._forget()
        while True:
            self._wake = anyio.Event()
            pause = await self.run_once()
            with anyio.move_on_after(pause):
                await self._wake.wait()

    async def run_once(self) -> float:
        """Publish everything that is due now; returns the seconds until there may be more to do."""
        try:
            await self._reload()
            while due := self._take_due(BATCH):
                await self._publish(due)
        except StoreDown as error:
            log.warning("beat.store_away", cause=str(error))
            return AWAY_SECONDS
        finally:
            self.pulse.beat()
        next_due = self._heap[0][0] if self._heap else float("inf")
        pause = min(next_due, self._reload_at) - self._clock.monotonic()
        return min(max(pause, 0.0), LONGEST_WAIT_SECONDS)

    async def _reload(self) -> None:
        now = self._clock.monotonic()
        if not self._system_added:
            self._add([_Entry(one, None) for one in self._schedules if not one.per_tenant], now)
            self._system_added = True
        if now < self._reload_at:
            return
        self._reload_at = now + self._settings.tenants_reload_seconds
        try:
            tenants = frozenset(await self._tenants())
        except StoreDown:
            self._reload_at = float("-inf")
            raise
        # Entries of tenants that went are dropped when they come up.
        new = sorted(tenants - self._known)
        self._known = tenants
        self._add([_Entry(one, tenant) for tenant in new for one in self._schedules if one.per_tenant], now)

    def _add(self, entries: Sequence[_Entry], now: float) -> None:
        spread = (len(entries) - 1) / FIRST_ROUND_PER_SECOND
        for position, entry in enumerate(entries):
            table = self._timetable(entry.schedule, spread)
            self._push(table.first(now, position / max(1, len(entries) - 1)), entry)

    def _push(self, due: float, entry: _Entry) -> None:
        order = next(self._order)
        self._valid[entry.key] = order
        heapq.heappush(self._heap, (due, order, entry))

    def _timetable(self, schedule: Schedule, spread_seconds: float = 0.0) -> Timetable:
        return Interval(
            period_seconds=schedule.period_seconds * self._period_factor, spread_seconds=spread_seconds
        )

    def _take_due(self, limit: int) -> list[tuple[float, _Entry]]:
        now = self._clock.monotonic()
        taken: list[tuple[float, _Entry]] = []
        while self._heap and self._heap[0][0] <= now and len(taken) < limit:
            due, order, entry = heapq.heappop(self._heap)
            if self._valid.get(entry.key) != order:
                continue
            del self._valid[entry.key]
            if entry.tenant is None or entry.tenant in self._known:
                taken.append((due, entry))
        return taken

    async def _publish(self, due: Sequence[tuple[float, _Entry]]) -> None:
        messages = [self.message(entry.schedule, entry.tenant) for _, entry in due]
        try:
            await self._client.publish(messages)
        except QueueFull as error:
            # More of the same would not help a queue that is full; the next tick will find what waits.
            log.warning("beat.queue_full", cause=str(error), ticks=len(due))
        except BaseException:
            for at, entry in due:  # stays due: the store was away, or this leadership was cut off
                self._push(at, entry)
            raise
        now = self._clock.monotonic()
        for at, entry in due:
            self.published_at[entry.schedule.name] = now
            self._push(self._timetable(entry.schedule).following(at, now), entry)

    def message(self, schedule: Schedule, tenant: TenantId | None) -> Message:
        """One tick, idempotent by its key."""
        return self._client.message(
            schedule.task,
            {},
            tenant=tenant,
            key=schedule.name,
            while_running="drop",
            expires_seconds=self._settings.tick_expires_seconds,
        )
