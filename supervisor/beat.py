"""Beat: the scheduler of periodic ticks, run by the leader.

Each schedule has a heap with one entry, or one for each tenant where the task is a tenant's. What is due is
published in bulk as idempotent messages: one waiting per schedule and tenant (the key), dropped beside a
running one, expiring by themselves. So a tick sent twice, by two leaders or after a lost answer, costs
nothing, and a tick that was missed is simply the next one.

Of 23,000 tenants 88 had work in one report (onyx#10281): a task that says so (``work_gated``) passes over
tenants without any. Their entries come up all the same, so one that gets work is told within one period. A
burst of changes (an import that gives work to thousands of tenants) has the list read once a second, not once
for each; what comes up in between is decided by the next reading.

::

    due ──publish──▶ due + period   (moved past now: what was missed meanwhile is one tick, not many)
     ▲    │ store away
     └────┘ stays due, tried again every second
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

import anyio
import anyio.lowlevel

from hive.broker.port import Message
from hive.client import Client
from hive.clock import Clock
from hive.errors import QueueFull, StoreDown
from hive.ids import DEFAULT_TENANT, TenantId, new_message_id
from hive.logger import get_logger
from hive.pulse import Pulse
from hive.settings import Beat as BeatSettings
from supervisor.schedules import Interval, Schedule, Timetable

log = get_logger(__name__)

BATCH = 500  # ticks published in one call
PASSED_OVER = 20 * BATCH  # entries of tenants without work that are looked at in one turn of the loop
FIRST_ROUND_PER_SECOND = 200  # new entries are spread so that thousands of tenants do not fire at once
FULL_ROUND_SECONDS = 20 * 60.0
"""Within this time a tenant without work is told to look all the same: a mark can be wrong, by hand say."""
ROUND_SECONDS = 0.25  # between two rounds: thousands of ticks a second go out in bulk instead of one by one
AWAY_SECONDS = 1.0
RELOADS_APART_SECONDS = 1.0  # reading the list costs 7 ms of CPU for 10,000 tenants
LONGEST_WAIT_SECONDS = 5.0

TenantSource = Callable[[], Awaitable[Mapping[TenantId, bool]]]
"""Reads the active tenants, and whether each has work; raises ``StoreDown``."""

_Entry = tuple[float, TenantId | None, float]  # when it is due, whose it is, when its last tick was sent
_NEVER = float("-inf")


class _Line:
    """One schedule: an entry for each tenant, or one for all; a heap by the time when they are due."""

    def __init__(self, schedule: Schedule, timetable: Timetable, pattern: Message) -> None:
        self.schedule = schedule
        self._timetable = timetable
        self._pattern = pattern
        self.entries: list[_Entry] = []
        self._undecided: list[_Entry] = []

    def add(self, entries: Sequence[_Entry]) -> None:
        self.entries += entries
        heapify(self.entries)

    def keep(self, tenants: frozenset[TenantId]) -> None:
        """Drop the entries of all others."""
        self.entries = [entry for entry in self.entries if entry[1] in tenants]
        heapify(self.entries)

    def take(self, now: float, limit: int, working: frozenset[TenantId], *, outdated: bool) -> list["_Due"]:
        """Up to ``limit`` entries that are due; tenants without work are passed over if next time will do.

        Where who has work is ``outdated``, those are kept for ``decide``.
        """
        entries, gated, taken, passed = self.entries, self.schedule.work_gated, list[_Due](), 0
        while entries and entries[0][0] <= now and len(taken) < limit and passed < PASSED_OVER:
            due, tenant, sent = entries[0]
            if gated and tenant not in working:
                following = self._timetable.following(due, now)
                if following - sent <= FULL_ROUND_SECONDS:
                    if outdated:
                        self._undecided.append(heappop(entries))
                    else:
                        heapreplace(entries, (following, tenant, sent))
                    passed += 1
                    continue
            taken.append((self, heappop(entries)))
        return taken

    def decide(self) -> None:
        """The list of tenants is a new one: what waited for it is due."""
        self.add(self._undecided)
        self._undecided = []

    def sent(self, entry: _Entry, now: float) -> None:
        heappush(self.entries, (self._timetable.following(entry[0], now), entry[1], now))

    def stays_due(self, entry: _Entry) -> None:
        heappush(self.entries, entry)

    def message(self, tenant: TenantId | None) -> Message:
        return self._pattern._replace(id=new_message_id(), tenant=tenant)


_Due = tuple[_Line, _Entry]


class Beat:
    """Publishes the ticks. Hand ``run`` to ``Leadership.while_leading``.

    ``tenants`` is asked every ``settings.tenants_reload_seconds``, and after ``tenants_changed``: at once,
    but not within a second of the last time.
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
        self._reloaded_at = _NEVER
        self._forget()

    def _forget(self) -> None:
        self._lines = [
            _Line(one, self._timetable(one), self.message(one, DEFAULT_TENANT if one.per_tenant else None))
            for one in self._schedules
        ]
        self._known: frozenset[TenantId] = frozenset()
        self._working: frozenset[TenantId] = frozenset()
        self._reload_at = _NEVER
        self._outdated = False
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
        """Read the list of tenants again: one was added, suspended or removed, or got work."""
        self._outdated = True
        soon = self._reloaded_at + RELOADS_APART_SECONDS
        if soon < self._reload_at:  # the first of a burst: ``run`` sleeps until a later time
            self._reload_at = soon
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
            while self._next_due() <= self._clock.monotonic():
                if due := self._take_due(BATCH):
                    await self._publish(due)
                else:
                    await anyio.lowlevel.checkpoint()  # many were passed over
        except StoreDown as error:
            log.warning("beat.store_away", cause=str(error))
            return AWAY_SECONDS
        finally:
            self.pulse.beat()
        pause = min(self._next_due(), self._reload_at) - self._clock.monotonic()
        return min(max(pause, ROUND_SECONDS), LONGEST_WAIT_SECONDS)

    async def _reload(self) -> None:
        now = self._clock.monotonic()
        if not self._system_added:
            for line in self._lines:
                if not line.schedule.per_tenant:
                    line.add([(now, None, _NEVER)])
            self._system_added = True
        if now < self._reload_at:
            return
        self._reload_at = now + self._settings.tenants_reload_seconds
        self._reloaded_at = now
        self._outdated = False
        try:
            tenants = await self._tenants()
        except StoreDown:
            self._reload_at = _NEVER
            raise
        known, before = frozenset(tenants), self._known
        self._known = known
        self._working = frozenset(tenant for tenant, working in tenants.items() if working)
        lines = [line for line in self._lines if line.schedule.per_tenant]
        for line in lines:
            line.decide()
        if before - known:
            for line in lines:
                line.keep(known)
        if known - before:
            self._add(sorted(known - before), lines, now)

    def _add(self, tenants: Sequence[TenantId], lines: Sequence[_Line], now: float) -> None:
        """Entries for tenants that are new here: their first ticks are spread, to a flow of so many a second.

        Those without work are spread over a full round.
        """
        last = max(1, len(tenants) * len(lines) - 1)
        spread = last / FIRST_ROUND_PER_SECOND
        for offset, line in enumerate(lines):
            table = self._timetable(line.schedule, spread)
            places = (at / last for at in range(offset, len(tenants) * len(lines), len(lines)))
            line.add(
                [
                    (table.first(now, place), tenant, now - FULL_ROUND_SECONDS * (1 - place))
                    for tenant, place in zip(tenants, places, strict=True)
                ]
            )

    def _timetable(self, schedule: Schedule, spread_seconds: float = 0.0) -> Timetable:
        return Interval(
            period_seconds=schedule.period_seconds * self._period_factor, spread_seconds=spread_seconds
        )

    def _next_due(self) -> float:
        return min((line.entries[0][0] for line in self._lines if line.entries), default=float("inf"))

    def _take_due(self, limit: int) -> list[_Due]:
        now = self._clock.monotonic()
        taken: list[_Due] = []
        for line in self._lines:
            taken += line.take(now, limit - len(taken), self._working, outdated=self._outdated)
        return taken

    async def _publish(self, due: Sequence[_Due]) -> None:
        try:
            await self._client.publish([line.message(entry[1]) for line, entry in due])
        except QueueFull as error:
            # More of the same would not help a queue that is full; the next tick will find what waits.
            log.warning("beat.queue_full", cause=str(error), ticks=len(due))
        except BaseException:
            for line, entry in due:  # the store was away, or this leadership was cut off
                line.stays_due(entry)
            raise
        now = self._clock.monotonic()
        for line, entry in due:
            self.published_at[line.schedule.name] = now
            line.sent(entry, now)

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
