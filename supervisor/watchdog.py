"""The watchdog: restarts what lives but does not get on.

Two signs are read. Each service's pulse, beaten by real rounds of work: a stale one restarts that service
alone. And the heartbeat, which only comes round if beat publishes, the broker carries, a pool claims and a
handler runs: when it stays away for long, beat is restarted and the link that broke is named.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import anyio

from hive.broker.port import Broker
from hive.clock import Clock
from hive.errors import StoreDown
from hive.events import Events, JobSettled, JobStarted
from hive.ids import QueueName
from hive.logger import get_logger
from hive.pulse import Pulse
from hive.settings import Watchdog as WatchdogSettings
from hive.store.heartbeat import Heartbeat
from supervisor.service import ServiceView

log = get_logger(__name__)

LOOK_SECONDS = 1.0
LATE_SECONDS = 5.0
HEARTBEAT_TASK = "heartbeat"
BEAT_SERVICE = "beat"


class Supervised(Protocol):
    """The part of ``ServiceTree`` that the watchdog uses."""

    def views(self) -> list[ServiceView]: ...
    def restart(self, name: str, reason: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """Where the heartbeat's links can be looked at.

    ``expected_seconds``: how often it should come round. ``leading``: whether this process's beat is the
    one that publishes. ``published_at``: when it last published the heartbeat, on the clock, or None.
    ``broker`` and ``queue`` carry it.
    """

    heartbeat: Heartbeat
    expected_seconds: float
    broker: Broker
    queue: QueueName
    leading: Callable[[], bool]
    published_at: Callable[[], float | None]


class Watchdog:
    """``run`` is the service. ``chain`` is None where no queue carries the heartbeat."""

    def __init__(
        self,
        services: Supervised,
        settings: WatchdogSettings,
        *,
        chain: Chain | None,
        clock: Clock,
        events: Events,
    ) -> None:
        self._services = services
        self._settings = settings
        self._chain = chain
        self._clock = clock
        self.pulse = Pulse(clock, LATE_SECONDS * 2)
        self.misses = 0
        self.broken_link: str | None = None
        """The link named at the last alarm; None while the chain comes round."""
        now = clock.monotonic()
        self._looked_at = now
        self._woke_at = float("-inf")
        self._read_at = now
        self._silent_since = now
        self._handler_started_at: float | None = None
        self._handler_outcome: str | None = None
        events.subscribe(JobStarted, self._on_started)
        events.subscribe(JobSettled, self._on_settled)

    async def run(self) -> None:
        """Look at the pulses every second, and at the heartbeat every ``watchdog.period_seconds``."""
        while True:
            await self.run_once()
            await anyio.sleep(LOOK_SECONDS)

    async def run_once(self) -> None:
        """One look at everything that is due to be looked at."""
        self.check_pulses()
        if self._clock.monotonic() - self._read_at >= self._settings.period_seconds:
            await self.check_heartbeat()
        self.pulse.beat()

    def check_pulses(self) -> None:
        """Restart every running service whose pulse is stale.

        If this very look comes late, the loop stood still or the machine slept: then every pulse is old, for
        no fault of its service, and the judgement waits until each had time for a round.
        """
        now = self._clock.monotonic()
        late = now - self._looked_at > LATE_SECONDS + LOOK_SECONDS
        self._looked_at = now
        if late:
            self._woke_at = now
        for view in self._services.views():
            if not view.stale or view.pulse_age_seconds is None or view.pulse_period_seconds is None:
                continue
            if now - self._woke_at <= 3 * view.pulse_period_seconds:
                continue
            seconds = round(view.pulse_age_seconds, 1)
            log.error("watchdog.stale_pulse", service=view.name, pulse_age_seconds=seconds)
            self._services.restart(view.name, f"no round finished for {seconds} s")

    async def check_heartbeat(self) -> None:
        """Read the heartbeat once; after too many misses *and* too long a silence, restart beat."""
        now = self._clock.monotonic()
        since_last_read, self._read_at = now - self._read_at, now
        chain = self._chain
        if chain is None:
            return
        try:
            age = await chain.heartbeat.age_seconds()
        except StoreDown as error:
            # Not a miss, and its time does not count: the silence goes on where it was.
            self._silent_since += since_last_read
            log.info("watchdog.store_away", cause=str(error))
            return
        if age is not None and age <= 2 * max(self._settings.period_seconds, chain.expected_seconds):
            if self.broken_link is not None:
                log.info("watchdog.chain_whole", was=self.broken_link)
            self.misses, self.broken_link, self._silent_since = 0, None, now - age
            return
        self.misses += 1
        silent_seconds = now - self._silent_since
        limit_seconds = max(self._settings.silence_seconds, 3 * chain.expected_seconds)
        log.warning("watchdog.heartbeat_missed", misses=self.misses, silent_seconds=round(silent_seconds))
        if self.misses > self._settings.misses and silent_seconds >= limit_seconds:
            self.broken_link = await self._broken_link(chain, now)
            log.error("watchdog.chain_broken", link=self.broken_link, silent_seconds=round(silent_seconds))
            # Another process's beat is that process's to restart.
            if chain.leading():
                self._services.restart(
                    BEAT_SERVICE, f"no heartbeat for {silent_seconds:.0f} s: {self.broken_link}"
                )
            self.misses, self._silent_since = 0, now

    async def _broken_link(self, chain: Chain, now: float) -> str:
        """Which link of the chain does not hold, in one line."""
        if not chain.leading():
            return "beat: this process does not lead, and whoever does is not heard of"
        published_at = chain.published_at()
        if published_at is None or now - published_at > 2 * chain.expected_seconds:
            return "beat: it does not publish"
        try:
            depth = await chain.broker.depth(chain.queue)
        except StoreDown as error:
            return f"broker: {error}"
        if self._handler_started_at is not None:
            return f"handler: it has run for {now - self._handler_started_at:.0f} s"
        if depth.waiting and not depth.running:
            return f"pool: {depth.waiting} messages wait in {chain.queue!r} and none runs"
        if depth.waiting:
            return (
                f"pool: {depth.waiting} messages wait in {chain.queue!r} behind {depth.running} running ones"
            )
        if self._handler_outcome not in {None, "completed"}:
            return f"handler: it ended as {self._handler_outcome}"
        return "broker: what was published neither waits nor ran here"

    def _on_started(self, event: JobStarted) -> None:
        if event.task == HEARTBEAT_TASK:
            self._handler_started_at = self._clock.monotonic()

    def _on_settled(self, event: JobSettled) -> None:
        if event.task == HEARTBEAT_TASK:
            self._handler_started_at = None
            self._handler_outcome = event.outcome
