"""The pool as a whole: its slots, and fairness among its queues."""

import asyncio
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hive.broker.port import Delivery
from hive.context import Context
from hive.errors import HandedBack, NotFound, Permanent, Transient
from hive.ids import QueueName
from patience import until
from pool_kit import Gate, Rig, declare

WORK = QueueName("work")


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
        await until(lambda: inside >= 6, what="what came has the free slots, not the next claim")


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
