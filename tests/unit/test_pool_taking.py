"""What a broker hands to a pool that waits, between its claims."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel

from hive.broker.memory import Memory
from hive.broker.port import Taker
from hive.clock import SystemClock
from hive.context import Context
from hive.ids import MessageId, ProcessId, QueueName, new_process_id
from hive.tasks import Task
from hive.testing.harness import QUEUE, message
from patience import until
from pool_kit import Gate, Rig, declare
from pools.hands import Hands
from pools.run import Run

WORK = QueueName("work")


class Giving(Memory):
    """A memory broker that gives to whoever receives."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.takers: dict[tuple[QueueName, ProcessId], Taker | None] = {}
        self.withdrawn: set[QueueName] = set()

    def receive(self, queue: QueueName, owner: ProcessId, taker: Taker | None) -> None:
        self.takers[queue, owner] = taker

    async def withdraw(self, queue: QueueName, owner: ProcessId) -> None:
        self.withdrawn.add(queue)


class GivingRig(Rig):
    """A rig of one queue that is given its messages."""

    def __init__(self, *, slots: int = 1, prefetch: int = 0) -> None:
        self.giving = Giving()
        super().__init__(slots=slots, prefetch=prefetch, broker=self.giving)

    async def give(self, task: Task[...], *, seconds_ago: float = 0.0) -> tuple[MessageId, bool]:
        """A message that no claim has seen, and whether it was taken."""
        sent = self.client.message(task, {}, tenant=self.tenant)
        await self.giving.publish([sent], notify=False)
        (delivery,) = await self.giving.claim(WORK, self.owner, 1)
        taker = self.giving.takers[WORK, self.owner]
        assert taker is not None
        return sent.id, taker(delivery, self.clock.monotonic() - seconds_ago)

    @asynccontextmanager
    async def idling(self) -> AsyncGenerator[None]:
        """The pool at work, with nothing to do: its claims found nothing, and the next is far away."""
        async with self.serving():
            await anyio.wait_all_tasks_blocked()
            yield


def gated(rig: Rig) -> tuple[Gate, Task[...]]:
    gate = Gate()

    async def hold(context: Context) -> None:
        await gate(context)

    return gate, declare(rig, hold)


async def test_it_begins_in_the_next_turn_of_the_loop() -> None:
    rig = GivingRig()
    gate, hold = gated(rig)
    async with rig.idling():
        id, taken = await rig.give(hold)
        assert taken
        assert rig.pool.slots.in_use == 1
        await anyio.lowlevel.checkpoint()
        assert gate.entered == 1
        gate.open.set()
        await until(lambda: rig.labels.get(id) == "completed")
        assert rig.pool.slots.in_use == 0


async def test_it_waits_for_a_slot_as_what_is_prefetched_does() -> None:
    rig = GivingRig(prefetch=1)
    gate, hold = gated(rig)
    async with rig.idling():
        first, taken = await rig.give(hold)
        assert taken
        second, taken = await rig.give(hold)
        assert taken
        assert not (await rig.give(hold))[1]
        await anyio.wait_all_tasks_blocked()
        assert gate.entered == 1
        gate.open.set()
        await until(lambda: rig.count("completed") == 2)
        assert set(rig.labels) == {first, second}
        assert gate.most == 1


async def test_nothing_is_taken_that_could_not_begin_at_once() -> None:
    """Full, paused, switched off or stopped: others should have it."""
    rig = GivingRig()
    gate, hold = gated(rig)
    async with rig.idling():
        assert (await rig.give(hold))[1]
        assert not (await rig.give(hold))[1]
        gate.open.set()
        await until(lambda: rig.pool.slots.free == 1)
        rig.pool.pause(WORK)
        assert not (await rig.give(hold))[1]
        rig.pool.resume(WORK)
        rig.pool.resize(0)
        assert not (await rig.give(hold))[1]
        rig.pool.resize(1)
        rig.pool.stop_intake()
        assert not (await rig.give(hold))[1]
        assert gate.entered == 1


async def test_one_whose_lease_may_have_ended_is_never_entered() -> None:
    """This process stood still, and read of it late: another may have it by now."""
    rig = GivingRig()
    gate, hold = gated(rig)
    async with rig.idling():
        id, taken = await rig.give(hold, seconds_ago=51)
        assert taken
        rig.pool.pause(WORK)  # or it would claim what it hands back
        await until(lambda: rig.labels.get(id) == "released")
        assert gate.entered == 0
        gate.open.set()


async def test_a_pool_that_has_ended_receives_no_more() -> None:
    rig = GivingRig()
    async with rig.idling():
        assert rig.giving.takers[WORK, rig.owner] is not None
    assert rig.giving.takers == {(WORK, rig.owner): None}


async def test_who_watches_over_runs_is_told_once_the_first_has_begun() -> None:
    """Their rounds would take as long as the way from the reader to the handler."""
    giving = Giving()
    hands, order = Hands(giving, "test", lambda: None), list[str]()

    async def watch() -> None:
        await hands.until_occupied()
        order.append("watched")

    async def begin() -> None:
        order.append("begun")

    await giving.publish([message(), message()])
    gone, run = (Run(each, 0.0) for each in await giving.claim(QUEUE, new_process_id(), 2))
    async with anyio.create_task_group() as group:
        group.start_soon(watch)
        await anyio.wait_all_tasks_blocked()
        hands.take(gone)
        hands.drop(gone)
        await anyio.wait_all_tasks_blocked()
        assert order == []
        hands.take(run)
        group.start_soon(begin)
    assert order == ["begun", "watched"]
