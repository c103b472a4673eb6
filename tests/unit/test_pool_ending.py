"""The pool as a whole: drains, cancellation, what is shown and heard of it."""

import asyncio
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hive.broker.port import Delivery
from hive.context import Context
from hive.errors import HandedBack
from hive.events import JobSettled
from hive.ids import QueueName, new_process_id
from patience import until
from pool_kit import Gate, Rig, declare

WORK = QueueName("work")


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
        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(pool.drain, 1000)
                await anyio.wait_all_tasks_blocked()
                report = await pool.drain(0)
    assert report.handed_back == 1


async def test_run_returns_after_a_drain():
    rig = Rig()
    with anyio.fail_after(20):
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
        with anyio.fail_after(20):
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
