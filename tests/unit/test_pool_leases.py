"""The pool as a whole: leases, noted starts, outages, outcomes that are refused."""

import asyncio
from typing import Any

import anyio
import anyio.lowlevel

from hive.broker.port import Delivery
from hive.context import Context
from hive.ids import QueueName, new_process_id
from hive.testing.manual_clock import ManualClock
from patience import until
from pool_kit import Gate, Rig, declare

WORK = QueueName("work")


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
        with anyio.fail_after(10):
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
