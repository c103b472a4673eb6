"""Beat under a clock that the test moves: first rounds, spreads, merging, outages, tenants that come."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from hive.backoff import NEVER
from hive.broker.memory import Memory
from hive.broker.port import Message, Published, Settlement
from hive.client import Client
from hive.errors import QueueFull, StoreDown
from hive.ids import QueueName, TenantId, new_process_id
from hive.outcomes import Completed
from hive.settings import Beat as BeatSettings
from hive.tasks import Registry, task
from hive.testing.manual_clock import ManualClock
from patience import until
from supervisor.beat import FULL_ROUND_SECONDS, Beat
from supervisor.schedules import Interval, schedules_of

QUEUE = QueueName("coordination")
OWNER = new_process_id()


class Faulty(Memory):
    """A memory broker whose store can be taken away."""

    failing: Exception | None = None
    calls = 0

    async def publish(self, messages: Sequence[Message], **options: Any) -> list[Published]:
        if self.failing is not None:
            raise self.failing
        self.calls += 1
        return await super().publish(messages, **options)


class Bench:
    """A beat over a memory broker, and what comes out of it."""

    def __init__(self, *tenants: str, periods: dict[str, float] | None = None) -> None:
        self.clock = ManualClock()
        self.broker = Faulty(self.clock)
        self.registry = Registry()
        self.tenants = {TenantId(tenant) for tenant in tenants}
        self.idle: set[str] = set()
        self.tenants_failing: Exception | None = None
        self.readings = 0

        @task(queue=QUEUE, scope="system", retry=NEVER, into=self.registry)
        async def heartbeat(context) -> None: ...

        @task(queue=QUEUE, retry=NEVER, into=self.registry)
        async def check_for_indexing(context) -> None: ...

        @task(queue=QUEUE, retry=NEVER, work_gated=True, into=self.registry)
        async def look_for_work(context) -> None: ...

        self.client = Client(routes={QUEUE: self.broker}, registry=self.registry)
        self.beat = Beat(
            schedules_of(
                periods or {"heartbeat": 60, "check_for_indexing": 15}, self.registry, self.client.routes
            ),
            client=self.client,
            tenants=self._tenants,
            settings=BeatSettings(),
            clock=self.clock,
        )

    async def _tenants(self) -> dict[TenantId, bool]:
        if self.tenants_failing is not None:
            raise self.tenants_failing
        self.readings += 1
        return {tenant: tenant not in self.idle for tenant in self.tenants}

    async def waiting(self) -> list[tuple[str, str | None]]:
        """Claim and complete everything that waits."""
        deliveries = await self.broker.claim(QUEUE, OWNER, 100_000)
        await self.broker.settle([Settlement(delivery=one, outcome=Completed()) for one in deliveries])
        return sorted((str(one.task), one.tenant) for one in deliveries)

    async def count_until(self, seconds: float, step: float = 1.0) -> int:
        """How many ticks come out while the time passes in steps, each consumed at once."""
        total = 0
        for _ in range(round(seconds / step)):
            self.clock.advance(step)
            await self.beat.run_once()
            total += len(await self.waiting())
        return total


async def test_the_first_round_comes_at_once_and_then_each_at_its_period() -> None:
    bench = Bench("acme", "globex")
    assert await bench.beat.run_once() <= 5
    first = await bench.waiting()
    bench.clock.advance(0.01)  # two tenants are spread over some milliseconds
    await bench.beat.run_once()
    first += await bench.waiting()
    assert sorted(first, key=str) == [
        ("check_for_indexing", "acme"),
        ("check_for_indexing", "globex"),
        ("heartbeat", None),
    ]
    assert await bench.count_until(60) == 2 * 4 + 1


async def test_a_tick_that_waits_is_not_doubled_and_what_was_missed_is_merged() -> None:
    bench = Bench("acme")
    await bench.beat.run_once()
    for _ in range(5):
        bench.clock.advance(15)
        await bench.beat.run_once()
    assert await bench.waiting() == [("check_for_indexing", "acme"), ("heartbeat", None)]
    bench.clock.advance(3600)
    await bench.beat.run_once()
    assert len(await bench.waiting()) == 2
    assert await bench.count_until(14) == 0, "the series goes on as before, with no tick made up for"
    assert await bench.count_until(2) == 1


async def test_a_tick_beside_its_running_one_is_dropped() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 15})
    await bench.beat.run_once()
    (running,) = await bench.broker.claim(QUEUE, OWNER, 10)
    bench.clock.advance(15)
    await bench.beat.run_once()
    await bench.broker.settle([Settlement(delivery=running, outcome=Completed())])
    assert await bench.waiting() == []


async def test_a_new_tenant_is_served_at_once_and_a_removed_one_no_longer() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 15})
    await bench.beat.run_once()
    await bench.waiting()
    bench.tenants = {TenantId("globex")}
    await bench.beat.run_once()
    assert await bench.waiting() == [], "the list is read again only after its time …"
    bench.clock.advance(1)
    bench.beat.tenants_changed()
    await bench.beat.run_once()
    assert await bench.waiting() == [("check_for_indexing", "globex")], "… or when told"
    bench.clock.advance(15)
    await bench.beat.run_once()
    assert await bench.waiting() == [("check_for_indexing", "globex")]


async def test_the_list_of_tenants_is_read_again_by_itself() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 3600})
    await bench.beat.run_once()
    await bench.waiting()
    bench.tenants.add(TenantId("globex"))
    bench.clock.advance(61)
    await bench.beat.run_once()
    assert await bench.waiting() == [("check_for_indexing", "globex")]


async def test_a_tenant_that_left_and_came_back_ticks_once() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 15})
    await bench.beat.run_once()
    for tenants in (set(), {TenantId("acme")}):
        bench.tenants = tenants
        bench.clock.advance(1)
        bench.beat.tenants_changed()
        await bench.beat.run_once()
    await bench.waiting()
    assert await bench.count_until(150, step=0.5) == 10


async def test_tenants_without_work_are_passed_over_but_for_a_full_round() -> None:
    bench = Bench(*(f"t{number:03}" for number in range(100)), periods={"look_for_work": 15})
    bench.idle = bench.tenants - {TenantId("t007")}
    await bench.beat.run_once()
    ticks: list[str | None] = []
    for _ in range(int(FULL_ROUND_SECONDS)):
        ticks += [tenant for _, tenant in await bench.waiting()]
        bench.clock.advance(1)
        await bench.beat.run_once()
    assert ticks.count("t007") == pytest.approx(FULL_ROUND_SECONDS / 15, abs=1)
    assert {ticks.count(tenant) for tenant in bench.idle} <= {1, 2}, "each within twenty minutes"


async def test_full_rounds_of_tenants_without_work_are_spread() -> None:
    bench = Bench(*(f"t{number:03}" for number in range(120)), periods={"look_for_work": 15})
    bench.idle = set(bench.tenants)
    await bench.beat.run_once()
    for _ in range(3):
        counts = [await bench.count_until(60) for _ in range(20)]
        assert sum(counts) == pytest.approx(120, abs=12)
        assert max(counts) <= 12


async def test_a_tenant_that_gets_work_is_told_within_one_period() -> None:
    bench = Bench("acme", "globex", periods={"look_for_work": 15})
    bench.idle = {"acme"}
    await bench.beat.run_once()
    await bench.count_until(100)
    bench.idle = set()
    bench.beat.tenants_changed()
    told: list[str | None] = []
    for _ in range(15):
        bench.clock.advance(1)
        await bench.beat.run_once()
        told += [tenant for _, tenant in await bench.waiting()]
    assert sorted(told, key=str) == ["acme", "globex"]


async def test_a_burst_of_changes_has_the_list_read_once_a_second() -> None:
    bench = Bench("acme")
    await bench.beat.run_once()
    for _ in range(1000):
        bench.clock.advance(0.01)
        bench.beat.tenants_changed()
        await bench.beat.run_once()
    assert bench.readings == pytest.approx(1 + 10, abs=1)
    bench.clock.advance(1)
    await bench.beat.run_once()
    readings = bench.readings
    bench.clock.advance(5)
    await bench.beat.run_once()
    assert bench.readings == readings, "the last of the burst was read as well, and nothing is left of it"


async def test_a_tenant_that_gets_work_in_a_burst_is_told_within_one_period() -> None:
    bench = Bench(*(f"t{number:03}" for number in range(100)), periods={"look_for_work": 15})
    bench.idle = set(bench.tenants)
    await bench.beat.run_once()
    await bench.count_until(100)
    given: dict[str | None, float] = {}
    told: dict[str | None, float] = {}
    for turn in range(1100):  # one gets work every tenth of a second, for ten seconds
        bench.clock.advance(0.05)
        if turn % 2 and turn < 200:
            tenant = f"t{turn // 2:03}"
            bench.idle.discard(tenant)
            given[tenant] = bench.clock.monotonic()
            bench.beat.tenants_changed()
        await bench.beat.run_once()
        for _, ticked in await bench.waiting():
            if ticked in given:
                told.setdefault(ticked, bench.clock.monotonic())
    assert len(told) == 100
    assert max(told[tenant] - at for tenant, at in given.items()) <= 15.1


async def test_a_burst_wakes_a_run_once() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 3600})
    rounds = 0
    async with anyio.create_task_group() as group:
        group.start_soon(bench.beat.run, 1)
        await until(lambda: bench.broker.calls == 1)
        await anyio.wait_all_tasks_blocked()
        turn = bench.beat.run_once

        async def counted() -> float:
            nonlocal rounds
            rounds += 1
            return await turn()

        bench.beat.run_once = counted
        for _ in range(100):
            bench.beat.tenants_changed()
            await anyio.wait_all_tasks_blocked()
        assert (rounds, bench.readings) == (1, 1), "it was told when to read, and sleeps until then"
        group.cancel_scope.cancel()


async def test_work_that_nobody_announced_is_found_when_the_list_is_read_again() -> None:
    bench = Bench("acme", periods={"look_for_work": 15})
    bench.idle = {"acme"}
    await bench.beat.run_once()
    await bench.count_until(100)
    bench.idle = set()
    assert await bench.count_until(60 + 15) >= 1


async def test_a_task_that_does_not_say_so_is_told_whether_there_is_work_or_not() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 15})
    bench.idle = {"acme"}
    await bench.beat.run_once()
    await bench.waiting()
    assert await bench.count_until(60) == 4


async def test_many_tenants_are_spread_over_the_period_and_published_in_bulk() -> None:
    bench = Bench(*(f"t{number:04}" for number in range(3000)), periods={"check_for_indexing": 15})
    counts = []
    for _ in range(30):
        await bench.beat.run_once()
        counts.append(len(await bench.waiting()))
        bench.clock.advance(1)
    assert sum(counts[:15]) == pytest.approx(3000, abs=201)
    assert sum(counts) == pytest.approx(6000, abs=201)
    assert max(counts) <= 202
    assert bench.broker.calls <= 31


async def test_an_outage_is_ridden_out_and_leaves_one_tick_each() -> None:
    bench = Bench("acme")
    await bench.beat.run_once()
    await bench.waiting()
    bench.broker.failing = StoreDown("redis", "publishing")
    for _ in range(120):
        bench.clock.advance(1)
        pause = await bench.beat.run_once()
        assert bench.beat.pulse.fresh
    assert pause == 1
    bench.broker.failing = None
    await bench.beat.run_once()
    assert await bench.waiting() == [("check_for_indexing", "acme"), ("heartbeat", None)]


async def test_a_start_during_an_outage_begins_when_it_ends() -> None:
    bench = Bench("acme")
    bench.tenants_failing = StoreDown("postgres", "listing tenants")
    await bench.beat.run_once()
    bench.tenants_failing = None
    bench.clock.advance(1)
    await bench.beat.run_once()
    assert await bench.waiting() == [("check_for_indexing", "acme"), ("heartbeat", None)]


async def test_a_full_queue_costs_a_tick_not_the_service() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 15})
    await bench.beat.run_once()
    await bench.waiting()
    bench.broker.failing = QueueFull("coordination is full")
    bench.clock.advance(15)
    await bench.beat.run_once()
    bench.broker.failing = None
    assert await bench.count_until(15) == 1


async def test_periods_can_be_multiplied_live() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 15})
    await bench.beat.run_once()
    await bench.waiting()
    bench.beat.period_factor = 2
    await bench.beat.run_once()
    assert len(await bench.waiting()) == 1
    assert await bench.count_until(29) == 0
    assert await bench.count_until(1) == 1
    with pytest.raises(ValueError, match="above 0"):
        bench.beat.period_factor = 0


async def test_a_run_wakes_for_a_new_tenant_without_waiting_for_its_time() -> None:
    bench = Bench("acme", periods={"check_for_indexing": 3600})
    async with anyio.create_task_group() as group:
        group.start_soon(bench.beat.run, 1)
        await until(lambda: bench.broker.calls == 1)
        bench.tenants.add(TenantId("globex"))
        bench.clock.advance(1)
        bench.beat.tenants_changed()
        await until(lambda: bench.broker.calls == 2)
        group.cancel_scope.cancel()


def test_only_schedules_that_can_run_are_kept() -> None:
    bench = Bench()
    periods = {"heartbeat": 60, "check_for_indexing": 0, "check_for_pruning": 20}
    kept = schedules_of(periods, bench.registry, {QUEUE})
    assert [(one.name, one.period_seconds, one.per_tenant) for one in kept] == [("heartbeat", 60, False)]
    assert schedules_of(periods, bench.registry, set()) == []


@pytest.mark.parametrize(
    ("due", "now", "following"), [(0, 0, 15), (0, 14, 15), (0, 15, 30), (0, 3601, 3615), (20, 10, 35)]
)
def test_the_series_of_an_interval(due: float, now: float, following: float) -> None:
    assert Interval(period_seconds=15).following(due, now) == following


def test_messages_are_idempotent_ticks() -> None:
    bench = Bench("acme")
    (schedule,) = [
        one for one in schedules_of({"check_for_indexing": 15}, bench.registry, {QUEUE}) if one.per_tenant
    ]
    message = bench.beat.message(schedule, TenantId("acme"))
    assert message.key == "check_for_indexing"
    assert message.while_running == "drop"
    assert message.expires_seconds == 900
    assert message.max_attempts == 1
