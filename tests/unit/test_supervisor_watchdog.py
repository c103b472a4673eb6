"""The watchdog under a clock that the test moves, over a memory broker and real services' views."""

from collections.abc import Sequence

import pytest
import structlog

from hive.broker.memory import Memory
from hive.broker.port import Message
from hive.errors import StoreDown
from hive.events import Events, JobSettled, JobStarted
from hive.ids import QueueName, TaskName, new_message_id, new_process_id
from hive.settings import Watchdog as WatchdogSettings
from hive.store.heartbeat import Heartbeat
from hive.testing.manual_clock import ManualClock
from supervisor.service import ServiceState, ServiceView
from supervisor.watchdog import Chain, Watchdog

QUEUE = QueueName("coordination")


class Shelf(Heartbeat):
    """A heartbeat that lies on a shelf; the store can be taken away."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.marked_at: float | None = clock.monotonic()
        self.away = False

    async def mark(self) -> None:
        self.marked_at = self.clock.monotonic()

    async def age_seconds(self) -> float | None:
        if self.away:
            raise StoreDown("redis", "reading the heartbeat")
        if self.marked_at is None or self.clock.monotonic() - self.marked_at > 600:
            return None
        return self.clock.monotonic() - self.marked_at


class Services:
    """Views as a tree would give them, and a note of every restart."""

    def __init__(self) -> None:
        self.pulses: dict[str, float] = {}
        self.restarted: list[tuple[str, str]] = []

    def views(self) -> Sequence[ServiceView]:
        return [
            ServiceView(
                name=name,
                state=ServiceState.RUNNING,
                critical=False,
                restarts=0,
                since_seconds=10_000,
                cause=None,
                pulse_age_seconds=age,
                pulse_period_seconds=10,
                stale=age > 30,
            )
            for name, age in self.pulses.items()
        ]

    def restart(self, name: str, reason: str) -> None:
        self.restarted.append((name, reason))


class Bench:
    def __init__(self, *, leading: bool = True) -> None:
        self.clock = ManualClock()
        self.events = Events()
        self.services = Services()
        self.heartbeat = Shelf(self.clock)
        self.broker = Memory(self.clock)
        self.published_at: float | None = None
        self.leading = leading
        self.watchdog = Watchdog(
            self.services,
            WatchdogSettings(),
            chain=Chain(
                heartbeat=self.heartbeat,
                expected_seconds=60,
                broker=self.broker,
                queue=QUEUE,
                leading=lambda: self.leading,
                published_at=lambda: self.published_at,
            ),
            clock=self.clock,
            events=self.events,
        )

    async def pass_minutes(self, minutes: int, *, marking: bool = False, publishing: bool = False) -> None:
        for _ in range(minutes * 60):
            self.clock.advance(1)
            if publishing:
                self.published_at = self.clock.monotonic()
            if marking and self.clock.monotonic() % 60 == 0:
                await self.heartbeat.mark()
            await self.watchdog.run_once()

    def tell(self, outcome: str | None) -> None:
        job = new_message_id()
        common = {"pool": "primary", "queue": QUEUE, "task": "heartbeat", "job": job, "tenant": None}
        self.events.publish(JobStarted(**common))
        if outcome is not None:
            self.events.publish(JobSettled(**common, outcome=outcome, run_seconds=0.1))

    async def send(self) -> None:
        await self.broker.publish(
            [Message(id=new_message_id(), queue=QUEUE, task=TaskName("heartbeat"), tenant=None, args={})]
        )


async def test_a_heartbeat_that_comes_round_restarts_nothing() -> None:
    bench = Bench()
    await bench.pass_minutes(120, marking=True)
    assert bench.watchdog.misses == 0
    assert bench.services.restarted == []


async def test_silence_restarts_beat_after_misses_and_900_seconds_and_not_every_minute_after() -> None:
    bench = Bench()
    await bench.pass_minutes(14)
    assert bench.services.restarted == []
    assert bench.watchdog.misses > 5
    await bench.pass_minutes(3)
    assert bench.services.restarted == [
        ("beat", bench.services.restarted[0][1]),
    ]
    assert "beat: it does not publish" in bench.services.restarted[0][1]
    await bench.pass_minutes(12)
    assert len(bench.services.restarted) == 1
    await bench.pass_minutes(5)
    assert len(bench.services.restarted) == 2
    with structlog.testing.capture_logs() as captured:
        await bench.pass_minutes(2, marking=True)
    assert any(line["event"] == "watchdog.chain_whole" for line in captured)
    assert bench.watchdog.broken_link is None


async def test_an_outage_is_not_a_miss_and_its_time_does_not_count() -> None:
    bench = Bench()
    await bench.pass_minutes(10)
    bench.heartbeat.away = True
    await bench.pass_minutes(600)
    bench.heartbeat.away = False
    await bench.pass_minutes(3)
    assert bench.services.restarted == []
    await bench.pass_minutes(3)
    assert len(bench.services.restarted) == 1


@pytest.mark.parametrize(
    ("link", "outcome"),
    [
        ("pool: 1 messages wait in 'coordination' and none runs", "waits"),
        ("handler: it has run for", None),
        ("handler: it ended as failed", "failed"),
        ("broker: what was published neither waits nor ran here", "nothing"),
    ],
)
async def test_the_broken_link_is_named(link: str, outcome: str | None) -> None:
    bench = Bench()
    await bench.pass_minutes(13, publishing=True)
    if outcome == "waits":
        await bench.send()
    elif outcome != "nothing":
        bench.tell(outcome)
    await bench.pass_minutes(2, publishing=True)
    assert bench.watchdog.broken_link is not None
    assert bench.watchdog.broken_link.startswith(link)
    assert len(bench.services.restarted) == 1


async def test_a_pool_that_is_busy_with_others_is_named() -> None:
    bench = Bench()
    await bench.send()
    await bench.broker.claim(QUEUE, new_process_id(), 1)
    await bench.send()
    await bench.pass_minutes(17, publishing=True)
    assert bench.watchdog.broken_link is not None
    assert "behind 1 running ones" in bench.watchdog.broken_link


async def test_who_does_not_lead_raises_the_alarm_but_restarts_nothing() -> None:
    bench = Bench(leading=False)
    await bench.pass_minutes(17)
    assert bench.services.restarted == []
    assert bench.watchdog.broken_link is not None
    assert "does not lead" in bench.watchdog.broken_link


async def test_a_stale_pulse_restarts_that_service_alone() -> None:
    bench = Bench()
    bench.services.pulses = {"pool light": 29, "pool heavy": 31}
    bench.clock.advance(1)
    await bench.watchdog.run_once()
    assert [name for name, _ in bench.services.restarted] == ["pool heavy"]


async def test_after_a_suspend_every_service_gets_time_for_a_round_first() -> None:
    bench = Bench()
    bench.clock.advance(3600)
    bench.services.pulses = {"pool light": 3600, "pool heavy": 3600}
    await bench.watchdog.run_once()
    assert bench.services.restarted == []
    bench.services.pulses["pool light"] = 1
    for _ in range(31):
        bench.clock.advance(1)
        await bench.watchdog.run_once()
    assert [name for name, _ in bench.services.restarted] == ["pool heavy"]
