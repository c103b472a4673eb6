"""The pool as a whole: bounds, fairness, leases, outages, drains."""

import asyncio
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hive.broker.port import Delivery
from hive.context import Context
from hive.errors import HandedBack, NotFound, Permanent, Transient
from hive.events import JobSettled
from hive.ids import QueueName, new_process_id
from hive.tasks import task
from hive.testing.manual_clock import ManualClock
from patience import until
from pool_kit import Rig

WORK = QueueName("work")


def declare(rig: Rig, function: Any, queue: str = "work", **options: Any) -> Any:
    return task(queue=queue, into=rig.registry, **options)(function)


class Gate:
    """Handlers that wait here until let through, and count themselves."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.entered = 0

    async def __call__(self, context: Context) -> None:
        self.entered += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1


# -- bounds --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 8])
@pytest.mark.parametrize("queues", [("work",), ("work", "b", "c")])
async def test_never_more_handlers_than_slots_and_never_more_claims_than_slots_and_prefetch(
    prefetch: int, queues: tuple[str, ...]
):
    rig = Rig(slots=4, prefetch=prefetch, queues=queues)
    inside = most = 0

    async def handler(context: Context) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside, rig.pool.slots.in_use)
        await anyio.sleep(0.0005)
        inside -= 1

    async def watch() -> None:
        nonlocal held
        while True:
            held = max(held, len(rig.pool.running()))
            await anyio.lowlevel.checkpoint()

    held = 0
    declared = [declare(rig, handler, queue, name=f"t_{queue}") for queue in queues]
    async with rig.serving():
        for each in declared:
            await rig.send(each, 100)
        async with anyio.create_task_group() as group:
            group.start_soon(watch)
            await until(lambda: rig.count("completed") == 100 * len(queues))
            group.cancel_scope.cancel()
    assert most == 4
    settling = 4  # ended, their outcomes under way
    assert held <= 4 + prefetch * len(queues) + settling
    assert rig.pool.slots.free == 4


async def test_slots_are_all_there_after_a_thousand_mixed_endings():
    rig = Rig(slots=16, prefetch=4, cancel_seconds=1)

    async def mixed(context: Context, n: int) -> None:
        match n % 8:
            case 0:
                await anyio.lowlevel.checkpoint()
            case 1:
                raise ValueError("no")
            case 2:
                raise Transient("passes", retry_after_seconds=0)
            case 3:
                await anyio.sleep_forever()
            case 4:
                raise asyncio.CancelledError
            case 5:
                raise HandedBack if context.fence == 1 else Permanent("second time")
            case 6:
                raise SystemExit(1)
            case _:
                asyncio.current_task().cancel()  # pyright: ignore[reportOptionalMemberAccess]
                await anyio.lowlevel.checkpoint()

    def threaded(context: Context, n: int) -> None:
        if n % 2:
            raise ValueError("no")

    loop = declare(rig, mixed, soft_seconds=0.01)
    thread = declare(rig, threaded)
    async with rig.serving():
        messages = [
            rig.client.message(thread if n % 10 == 9 else loop, {"n": n}, tenant="acme")  # type: ignore[arg-type]
            for n in range(1000)
        ]
        await rig.client.publish(messages)
        ended = ("completed", "failed", "retrying")
        await until(
            lambda: len({event.job for event in rig.settled if event.outcome in ended}) == 1000, seconds=60
        )
        await until(lambda: not rig.pool.running())
    assert rig.pool.slots.in_use == 0
    assert rig.pool.slots.written_off == 0


async def test_slots_grow_and_shrink_while_they_are_used():
    rig = Rig(slots=2)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving() as pool:
        await rig.send(declared, 20)
        await until(lambda: gate.inside == 2)
        pool.resize(5)
        await until(lambda: gate.inside == 5)
        pool.resize(1)
        gate.open.set()
        await until(lambda: rig.count("completed") == 20)
        assert gate.most == 5
        assert pool.slots.free == 1


async def test_a_claim_under_way_keeps_no_slot_from_what_is_here_already():
    rig = Rig(slots=6, prefetch=6)
    passes = anyio.Semaphore(0)
    inside = 0

    async def handler(context: Context) -> None:
        nonlocal inside
        inside += 1
        try:
            await passes.acquire()
        finally:
            inside -= 1

    declared = declare(rig, handler)
    claim = rig.memory.claim
    permits = anyio.Semaphore(100)
    asked = 0

    async def slow(queue: QueueName, owner: Any, limit: int) -> list[Delivery]:
        nonlocal asked
        asked += 1
        await permits.acquire()
        return await claim(queue, owner, limit)

    rig.memory.claim = slow  # type: ignore[method-assign]
    async with rig.serving() as pool:
        await rig.send(declared, 100)
        await until(lambda: inside == 6 and len(pool.running()) == 12)
        while permits.value:
            permits.acquire_nowait()
        before = asked
        for _ in range(9):
            passes.release()
        await until(lambda: rig.count("completed") == 9 and asked == before + 1)
        assert (inside, pool.slots.free) == (3, 3), "one claim is under way, and nothing waits"
        permits.release()
        await until(lambda: asked == before + 2)
        await until(lambda: inside >= 6, seconds=2, what="what came has the free slots, not the next claim")


async def test_a_pool_without_slots_holds_nothing_and_goes_on_when_it_gets_some():
    rig = Rig(slots=1, prefetch=3)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving() as pool:
        await rig.send(declared, 6)
        await until(lambda: len(pool.running()) == 4)
        pool.resize(0)
        gate.open.set()
        await until(lambda: rig.count("completed") == 1 and not pool.running())
        assert (await rig.memory.depth(WORK)).waiting == 5
        pool.resize(2)
        await until(lambda: rig.count("completed") == 6)


# -- fairness ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_flooded_queue_does_not_starve_its_neighbour(slots: int, prefetch: int):
    rig = Rig(slots=slots, prefetch=prefetch, queues=("flood", "quiet"))
    order: list[str] = []

    async def handler(context: Context) -> None:
        order.append(context.delivery.queue)
        await anyio.sleep(0.001)

    flood = declare(rig, handler, "flood", name="flood")
    quiet = declare(rig, handler, "quiet", name="quiet")
    async with rig.serving():
        await rig.send(flood, 2000)
        await until(lambda: len(order) > 20)
        for _ in range(5):
            before = len(order)
            done = order.count("quiet")
            await rig.send(quiet)
            await until(lambda done=done: order.count("quiet") > done)
            waited = order[before:].index("quiet")
            assert waited <= 3 * (slots + prefetch) + 3, "it waits for slots, not for the flood"


async def test_a_paused_queue_waits_while_its_neighbour_runs():
    rig = Rig(queues=("a", "b"))

    async def handler(context: Context) -> None: ...

    a = declare(rig, handler, "a", name="a")
    b = declare(rig, handler, "b", name="b")
    async with rig.serving() as pool:
        pool.pause(QueueName("a"))
        await rig.send(a, 3)
        await rig.send(b, 3)
        await until(lambda: rig.count("completed") == 3)
        assert pool.ready
        assert (await rig.memory.depth(QueueName("a"))).waiting == 3
        pool.resume(QueueName("a"))
        await until(lambda: rig.count("completed") == 6)
        with pytest.raises(NotFound):
            pool.pause(QueueName("c"))


# -- leases --------------------------------------------------------------------------------------------------


async def test_leases_are_renewed_while_all_slots_are_full_prefetched_ones_included():
    clock = ManualClock()
    rig = Rig(slots=1, prefetch=2, clock=clock)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate", on_lease_doubt="continue")
    async with rig.serving() as pool:
        await rig.send(declared, 3)
        await until(lambda: len(pool.running()) == 3)
        for step in range(2):
            clock.advance(45)
            await until(lambda step=step: rig.memory.calls["renew"] > step)
            assert (await rig.memory.sweep([WORK])).expired == 0
        gate.open.set()
        await until(lambda: rig.count("completed") == 3)
    assert gate.entered == 3


async def test_a_lost_lease_ends_its_handler_and_writes_nothing():
    clock = ManualClock()
    rig = Rig(slots=2, prefetch=0, clock=clock)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate", on_lease_doubt="continue")
    async with rig.serving():
        (job,) = await rig.send(declared)
        await until(lambda: gate.inside == 1)
        rig.pool.pause(WORK)
        await rig.memory.owner_died(rig.owner)
        other = new_process_id()
        (theirs,) = await rig.memory.claim(WORK, other, 1)
        clock.advance(25)
        await until(lambda: rig.labels.get(job) == "stale")
        assert gate.inside == 0
        assert rig.pool.slots.free == 2
        assert not await rig.memory.renew([theirs]), "the other process still has it"


async def test_the_outcome_of_a_zombie_is_refused_as_stale():
    rig = Rig(slots=1, prefetch=0)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving():
        (job,) = await rig.send(declared)
        await until(lambda: gate.inside == 1)
        rig.pool.pause(WORK)
        await rig.memory.owner_died(rig.owner)
        (theirs,) = await rig.memory.claim(WORK, new_process_id(), 1)
        gate.open.set()
        await until(lambda: rig.labels.get(job) == "stale")
        assert not await rig.memory.renew([theirs])


async def test_in_lease_doubt_a_handler_is_cancelled_unless_its_task_says_to_go_on():
    clock = ManualClock()
    rig = Rig(slots=2, prefetch=0, clock=clock)
    careful, bold = Gate(), Gate()
    cancels = declare(rig, careful.__call__, name="careful", on_lease_doubt="cancel")
    goes_on = declare(rig, bold.__call__, name="bold", on_lease_doubt="continue")
    async with rig.serving():
        (bold_job,) = await rig.send(goes_on)
        await until(lambda: bold.inside == 1)
        (careful_job,) = await rig.send(cancels)
        await until(lambda: careful.inside == 1)
        rig.pool.pause(WORK)
        rig.memory.away = True
        clock.advance(49)
        await until(lambda: rig.memory.calls["renew"])
        assert (careful.inside, bold.inside) == (1, 1)
        clock.advance(2)
        await until(lambda: careful.inside == 0)
        assert bold.inside == 1
        bold.open.set()
        await until(lambda: bold.inside == 0)
        assert not rig.labels
        rig.memory.away = False
        await until(lambda: len(rig.labels) == 2)
    assert rig.labels == {bold_job: "completed", careful_job: "released"}


async def test_a_handler_is_not_entered_on_a_lease_in_doubt():
    clock = ManualClock()
    rig = Rig(slots=1, prefetch=1, clock=clock)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate", on_lease_doubt="continue")
    async with rig.serving() as pool:
        await rig.send(declared, 2)
        await until(lambda: len(pool.running()) == 2)
        pool.pause(WORK)
        rig.memory.away = True
        clock.advance(55)
        gate.open.set()
        await until(lambda: len([view for view in pool.running() if view.state == "settling"]) == 2)
        assert gate.entered == 1
        rig.memory.away = False
        await until(lambda: rig.count("released") == 1 and rig.count("completed") == 1)


# -- starts --------------------------------------------------------------------------------------------------


async def test_short_healthy_jobs_are_not_noted_and_longer_ones_are_once():
    rig = Rig()
    gate = Gate()

    async def quick(context: Context) -> None: ...

    short = declare(rig, quick)
    long = declare(rig, gate.__call__, name="gate")
    async with rig.serving():
        await rig.send(short, 50)
        await until(lambda: rig.count("completed") == 50)
        assert rig.memory.calls["mark_started"] == 0
        await rig.send(long)
        await until(lambda: rig.memory.calls["mark_started"] == 1)
        gate.open.set()
        await until(lambda: rig.count("completed") == 51)
        assert rig.memory.calls["mark_started"] == 1


async def test_a_job_whose_last_process_died_is_noted_before_it_is_entered():
    rig = Rig()
    noted: list[int] = []

    async def handler(context: Context) -> None:
        noted.append(rig.memory.calls["mark_started"])

    declared = declare(rig, handler)
    await rig.send(declared)
    dead = new_process_id()
    await rig.memory.claim(WORK, dead, 1)
    await rig.memory.owner_died(dead)
    async with rig.serving():
        await until(lambda: rig.count("completed") == 1)
    assert noted == [1]


# -- outages -------------------------------------------------------------------------------------------------


async def test_the_pool_rides_out_an_outage_and_goes_on_by_itself():
    rig = Rig()
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving() as pool:
        await rig.send(declared)
        await until(lambda: gate.inside == 1 and pool.ready)
        rig.memory.away = True
        await until(lambda: not pool.ready)
        await rig.send(declared, 3)
        gate.open.set()
        await until(lambda: gate.inside == 0)
        assert not rig.settled
        rig.memory.away = False
        with anyio.fail_after(2.5):
            await until(lambda: rig.count("completed") == 4)
        await until(lambda: pool.ready)
    assert gate.entered == 4


async def test_the_pulse_beats_through_an_outage_but_not_for_a_wedged_intake():
    clock = ManualClock()
    rig = Rig(clock=clock)
    wedged = asyncio.Event()

    async with rig.serving() as pool:
        rig.memory.away = True
        clock.advance(100)
        await until(lambda: pool.pulse.fresh, what="a round that ended in 'store away' is one too")
        rig.memory.away = False

        async def claim(queue: QueueName, owner: Any, limit: int) -> list[Delivery]:
            wedged.set()
            await anyio.sleep_forever()
            return []

        rig.memory.claim = claim  # type: ignore[method-assign]
        await wedged.wait()
        clock.advance(100)
        pool._beat()  # what any other call's answer would do
        assert not pool.pulse.fresh


async def test_a_pool_with_nothing_to_do_is_healthy():
    clock = ManualClock()
    rig = Rig(clock=clock)
    async with rig.serving() as pool:
        await until(lambda: pool.ready)
        pool.resize(0)
        pool.pause(WORK)
        await until(lambda: rig.memory.calls["claim"])
        clock.advance(100)
        await until(lambda: pool.pulse.fresh)


async def test_outcomes_are_written_in_batches_and_one_alone_at_once():
    rig = Rig(slots=50, prefetch=50)

    async def handler(context: Context) -> None: ...

    declared = declare(rig, handler)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("completed") == 1)
        assert rig.memory.batches == [1]
        await rig.send(declared, 500)
        await until(lambda: rig.count("completed") == 501)
    assert len(rig.memory.batches) < 100


async def test_an_outcome_that_the_store_refuses_does_not_hold_up_the_others():
    rig = Rig(slots=10, prefetch=0)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    settle = rig.memory.settle
    async with rig.serving() as pool:
        jobs = await rig.send(declared, 5)
        await until(lambda: gate.inside == 5)

        async def refuse(settlements: Any) -> Any:
            if any(each.delivery.id == jobs[2] for each in settlements):
                raise ValueError("cannot encode this")
            return await settle(settlements)

        rig.memory.settle = refuse  # type: ignore[method-assign]
        pool.pause(WORK)
        gate.open.set()
        await until(lambda: rig.count("completed") == 4)
        await until(lambda: not pool.running(), what="it is dropped, and its lease will end")
        assert jobs[2] not in rig.labels


async def test_two_brokers_in_one_pool_do_not_hold_each_other_up():
    first, second = Rig(), Rig()
    rig = Rig(routes={QueueName("a"): first.memory, QueueName("b"): second.memory})
    rig.memory = first.memory

    async def handler(context: Context) -> None: ...

    a = declare(rig, handler, "a", name="a")
    b = declare(rig, handler, "b", name="b")
    async with rig.serving() as pool:
        await until(lambda: pool.ready)
        second.memory.away = True
        await rig.send(b)
        await rig.send(a, 10)
        await until(lambda: rig.count("completed") == 10)
        assert not pool.ready
        second.memory.away = False
        await until(lambda: rig.count("completed") == 11)


# -- the end -------------------------------------------------------------------------------------------------


async def test_a_drain_lets_finish_what_can_and_hands_the_rest_back_unburned():
    rig = Rig(slots=2, prefetch=2)
    gates = {"short": Gate(), "long": Gate()}
    short = declare(rig, gates["short"].__call__, name="short")
    long = declare(rig, gates["long"].__call__, name="long")
    rig.pool.history.record("long", 3600)
    rig.pool.history.record("short", 2)
    async with rig.serving() as pool:
        (short_job,) = await rig.send(short)
        await until(lambda: gates["short"].inside == 1)
        (long_job,) = await rig.send(long)
        await until(lambda: gates["long"].inside == 1)
        waiting = await rig.send(long, 2)
        await until(lambda: len(pool.running()) == 4)
        async with anyio.create_task_group() as group:
            reports: list[Any] = []

            async def drain() -> None:
                reports.append(await pool.drain(20))

            group.start_soon(drain)
            await until(lambda: rig.labels.get(long_job) == "released")
            assert [rig.labels.get(job) for job in waiting] == ["released", "released"]
            assert not pool.ready
            assert short_job not in rig.labels
            gates["short"].open.set()
        (report,) = reports
    assert rig.labels[short_job] == "completed"
    assert (report.finished, report.handed_back, report.abandoned) == (1, 3, 0)
    other = await rig.memory.claim(WORK, new_process_id(), 9)
    assert [(each.attempt, each.redelivered) for each in other] == [(1, False)] * 3
    assert gates["long"].entered == 1


async def test_nothing_is_handed_back_before_its_handler_has_ended():
    rig = Rig(slots=1, prefetch=0, cancel_seconds=10)
    cleaning, clean = asyncio.Event(), asyncio.Event()

    async def handler(context: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cleaning.set()
            await clean.wait()

    declared = declare(rig, handler)
    rig.pool.history.record("handler", 3600)
    async with rig.serving() as pool:
        (job,) = await rig.send(declared)
        await until(lambda: rig.started)
        async with anyio.create_task_group() as group:
            group.start_soon(pool.drain, 20)
            await cleaning.wait()
            await anyio.wait_all_tasks_blocked()
            assert job not in rig.labels
            clean.set()
    assert rig.labels[job] == "released"


async def test_a_listening_handler_writes_its_checkpoint_and_is_handed_back():
    rig = Rig(slots=1, prefetch=0, cancel_seconds=10)
    stored: list[str] = []

    async def handler(context: Context) -> None:
        await context.stopping.wait()
        await anyio.sleep(0.01)
        stored.append("checkpoint")
        raise HandedBack

    declared = declare(rig, handler)
    rig.pool.history.record("handler", 3600)
    async with rig.serving() as pool:
        (job,) = await rig.send(declared)
        await until(lambda: rig.started)
        report = await pool.drain(20)
    assert stored == ["checkpoint"]
    assert rig.labels[job] == "released"
    assert (report.finished, report.handed_back, report.abandoned) == (0, 1, 0)


async def test_a_second_drain_shortens_the_first():
    rig = Rig(slots=1, prefetch=0)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving() as pool:
        await rig.send(declared)
        await until(lambda: gate.inside == 1)
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                group.start_soon(pool.drain, 1000)
                await anyio.wait_all_tasks_blocked()
                report = await pool.drain(0)
    assert report.handed_back == 1


async def test_run_returns_after_a_drain():
    rig = Rig()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as group:
            group.start_soon(rig.pool.run)
            await until(lambda: rig.pool.ready)
            report = await rig.pool.drain(5)
    assert (report.finished, report.handed_back, report.abandoned) == (0, 0, 0)
    assert not rig.pool.ready


async def test_what_does_not_end_is_abandoned_and_its_slot_comes_back_when_it_does():
    rig = Rig(slots=3, prefetch=0, cancel_seconds=0.1)
    release = threading.Event()

    def thread(context: Context) -> None:
        release.wait(20)

    declared = declare(rig, thread)
    with anyio.fail_after(10):
        async with rig.serving() as pool:
            (job,) = await rig.send(declared)
            await until(lambda: rig.started)
            report = await pool.drain(0)
    assert report.abandoned == 1
    assert job not in rig.labels, "the thread still runs: handing the job back would run it twice"
    assert pool.slots.in_use == 1
    release.set()
    await until(lambda: pool.slots.in_use == 0)


async def test_a_cancelled_pool_hands_back_and_can_run_again():
    rig = Rig(slots=2, prefetch=2)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving() as pool:
        await rig.send(declared, 4)
        await until(lambda: gate.inside == 2 and len(pool.running()) == 4)
    assert rig.count("released") == 4
    assert (pool.slots.in_use, pool.running()) == (0, [])
    gate.open.set()
    async with rig.serving():
        await until(lambda: rig.count("completed") == 4)


async def test_a_drain_that_is_cut_off_leaves_nothing_behind():
    rig = Rig(slots=1, prefetch=0)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    with anyio.fail_after(10):
        async with rig.serving() as pool:
            await rig.send(declared)
            await until(lambda: gate.inside == 1)
            with anyio.move_on_after(0.05):
                await pool.drain(1000)
    assert rig.count("released") == 1
    assert (gate.inside, pool.slots.in_use) == (0, 0)


def hold_claims(rig: Rig) -> tuple[asyncio.Event, asyncio.Event]:
    """Claims that bring something wait for their answer: when one has begun, and what lets all go on."""
    claim = rig.memory.claim
    asked, answer = asyncio.Event(), asyncio.Event()

    async def slow(queue: QueueName, owner: Any, limit: int) -> list[Delivery]:
        claimed = await claim(queue, owner, limit)
        if claimed:
            asked.set()
            await answer.wait()
        return claimed

    rig.memory.claim = slow  # type: ignore[method-assign]
    return asked, answer


async def test_a_claim_under_way_when_intake_stops_is_handed_back():
    rig = Rig(slots=2, prefetch=0)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    asked, answer = hold_claims(rig)
    async with rig.serving() as pool:
        (job,) = await rig.send(declared)
        await asked.wait()
        async with anyio.create_task_group() as group:
            group.start_soon(pool.drain, 5)
            await anyio.wait_all_tasks_blocked()
            answer.set()
    assert rig.labels[job] == "released"
    assert gate.entered == 0


async def test_a_claim_under_way_when_the_last_slot_goes_keeps_nothing():
    rig = Rig(slots=1, prefetch=3)
    gate = Gate()
    gate.open.set()
    declared = declare(rig, gate.__call__, name="gate")
    asked, answer = hold_claims(rig)
    async with rig.serving() as pool:
        await rig.send(declared, 4)
        await asked.wait()
        pool.resize(0)
        answer.set()
        await until(lambda: rig.count("completed") == 1)
        await until(lambda: not pool.running(), what="who has no slots holds nothing back from others")
        assert (await rig.memory.depth(WORK)).waiting == 3


async def test_a_drain_while_the_store_is_away_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pools.pool.FLUSH_SECONDS", 0.3)
    rig = Rig(slots=1, prefetch=0)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving() as pool:
        await rig.send(declared)
        await until(lambda: gate.inside == 1)
        rig.memory.away = True
        with anyio.fail_after(5):
            report = await pool.drain(0)
    assert report.abandoned == 1
    assert pool.slots.in_use == 0


async def test_running_jobs_are_shown():
    rig = Rig(slots=1, prefetch=1)
    gate = Gate()
    declared = declare(rig, gate.__call__, name="gate")
    async with rig.serving() as pool:
        await rig.send(declared, 2)
        await until(lambda: len(pool.running()) == 2 and gate.inside == 1)
        first, second = pool.running()
        assert (first.state, second.state) == ("running", "waiting")
        assert first.since is not None
        assert second.since is None
        gate.open.set()
        await until(lambda: rig.count("completed") == 2)


async def test_events_are_for_those_who_listen_and_the_work_is_the_same_without():
    rig = Rig()
    rig.events._subscribers.clear()

    async def handler(context: Context) -> None: ...

    declared = declare(rig, handler)
    async with rig.serving() as pool:
        await rig.send(declared, 5)
        await until(lambda: pool._tally["completed"] == 5)
        assert not rig.settled
        rig.events.subscribe(JobSettled, rig.settled.append)
        await rig.send(declared, 2)
        await until(lambda: rig.count("completed") == 2)
