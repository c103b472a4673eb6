"""Handlers that are told to end: by an operator, by a soft deadline, by a hard one; and those who do not."""

import asyncio
import threading
import time

import anyio
import pytest

from hive.backoff import Retry
from hive.context import Context
from hive.errors import HandedBack
from hive.outcomes import ErrorKind
from patience import until
from pool_kit import Rig, declare

SOON = Retry(on=(ValueError,), delays_seconds=(0, 0))


async def test_an_operators_cancel_ends_the_handler():
    rig = Rig()
    ended: list[str] = []

    async def handler(context: Context) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            await anyio.sleep(0.01)  # clean-up that awaits is not cut off by a second cancellation
            ended.append("cleaned")

    declared = declare(rig, handler)
    async with rig.serving():
        (job,) = await rig.send(declared)
        await until(lambda: rig.started)
        await rig.memory.cancel([job])
        await until(lambda: rig.labels.get(job) == "cancelled")
    assert ended == ["cleaned"]
    assert rig.pool.slots.free == 4


async def test_an_operators_cancel_reaches_a_thread_that_polls():
    rig = Rig()

    def handler(context: Context) -> None:
        while not context.stop_requested:
            time.sleep(0.005)
        raise HandedBack

    declared = declare(rig, handler)
    async with rig.serving():
        (job,) = await rig.send(declared)
        await until(lambda: rig.started)
        await rig.memory.cancel([job])
        await until(lambda: rig.labels.get(job) == "cancelled")


async def test_a_handler_that_swallows_its_cancellation_is_not_taken_for_done():
    rig = Rig()

    async def handler(context: Context) -> None:
        try:
            await anyio.sleep_forever()
        except asyncio.CancelledError:
            return

    declared = declare(rig, handler, soft_seconds=0.05, retry=Retry(delays_seconds=()))
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("failed") == 1)
    (letter,) = await rig.memory.dead_letters()
    assert (letter.error.kind, letter.error.code) == (ErrorKind.DEADLINE, "soft_deadline")


@pytest.mark.parametrize("threaded", [False, True])
async def test_a_soft_deadline_ends_in_a_retry(threaded: bool):
    rig = Rig()
    attempts: list[int] = []

    async def on_loop(context: Context) -> None:
        attempts.append(context.attempt)
        if context.attempt == 1:
            await anyio.sleep_forever()

    def in_thread(context: Context) -> None:
        attempts.append(context.attempt)
        while context.attempt == 1:
            time.sleep(0.005)
            if context.stop_requested:
                raise RuntimeError("stopped")

    declared = declare(rig, in_thread if threaded else on_loop, soft_seconds=0.5, retry=SOON)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("completed") == 1)
    assert attempts == [1, 2]
    assert [event.outcome for event in rig.settled] == ["retrying", "completed"]


async def test_a_hard_deadline_alone_cancels_a_handler_on_the_loop():
    rig = Rig()

    async def handler(context: Context) -> None:
        await anyio.sleep_forever()

    declared = declare(rig, handler, hard_seconds=0.05, retry=Retry(delays_seconds=()))
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("failed") == 1)
    (letter,) = await rig.memory.dead_letters()
    assert letter.error.code == "hard_deadline"
    assert not rig.lost_slots


async def test_a_thread_past_its_hard_deadline_costs_its_slot_and_keeps_its_lease_until_it_ends():
    rig = Rig(slots=2, renew_seconds=0.1, lease_seconds=20)
    release = threading.Event()

    def handler(context: Context) -> None:
        release.wait(20)

    async def other(context: Context) -> None: ...

    stuck = declare(rig, handler, hard_seconds=0.05)
    quick = declare(rig, other)
    async with rig.serving():
        (job,) = await rig.send(stuck)
        await until(lambda: rig.lost_slots)
        assert rig.pool.slots.written_off == 1
        assert [view.state for view in rig.pool.running()] == ["stuck"]
        await rig.send(quick, 5)
        await until(lambda: rig.count("completed") == 5, what="the other slot goes on")
        assert job not in rig.labels
        before = rig.memory.calls["renew"]
        await until(lambda: rig.memory.calls["renew"] > before + 1, what="its lease is renewed")
        release.set()
        await until(lambda: rig.labels.get(job) == "completed", what="it returned, so it did its work")
        assert rig.pool.slots.written_off == 0
        await until(lambda: rig.pool.slots.free == 2)


async def test_a_handler_that_ignores_every_cancellation_costs_its_slot_until_it_ends():
    rig = Rig(slots=2, cancel_seconds=0.05)
    release = asyncio.Event()

    async def handler(context: Context) -> None:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    declared = declare(rig, handler, hard_seconds=0.05, retry=Retry(delays_seconds=()))
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.lost_slots)
        assert rig.pool.slots.written_off == 1
        assert rig.pool.slots.in_use == 1
        release.set()
        await until(lambda: rig.count("failed") == 1)
        assert rig.pool.slots.written_off == 0
        await until(lambda: rig.pool.slots.free == 2)
