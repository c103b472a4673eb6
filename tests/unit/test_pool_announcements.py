"""A pool says how many slots it has: at the start, after a change, again and again, and zero at the end."""

from collections.abc import Mapping

import anyio

from hive.broker.memory import Memory
from hive.clock import SystemClock
from hive.context import Context
from hive.errors import StoreDown
from hive.ids import ProcessId, QueueName
from hive.tasks import task
from pool_kit import Rig


class Listening(Memory):
    """A memory broker that notes what it is told, and may be away."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.heard: list[dict[QueueName, int]] = []
        self.withdrawn: list[QueueName] = []
        self.away = False

    async def announce(self, owner: ProcessId, slots: Mapping[QueueName, int]) -> None:
        if self.away:
            raise StoreDown("memory", "announcing")
        self.heard.append(dict(slots))

    async def withdraw(self, queue: QueueName, owner: ProcessId) -> None:
        self.withdrawn.append(queue)

    async def until_withdrawn(self, queue: str) -> None:
        """Once more than so far."""
        with anyio.fail_after(10):
            self.withdrawn.clear()
            while queue not in self.withdrawn:
                await anyio.sleep(0.005)

    async def until(self, count: int) -> None:
        with anyio.fail_after(10):
            while len(self.heard) < count:
                await anyio.sleep(0.005)


async def test_slots_are_announced_at_the_start_after_a_change_and_at_the_end() -> None:
    broker = Listening()
    rig = Rig(slots=3, queues=("one", "two"), broker=broker)
    async with rig.serving() as pool:
        await broker.until(1)
        pool.resize(5)
        await broker.until(2)
        with anyio.fail_after(10):
            await pool.drain(0)
    assert broker.heard == [{"one": slots, "two": slots} for slots in (3, 5, 0)]


async def test_they_are_repeated_in_time() -> None:
    broker = Listening()
    rig = Rig(slots=3, broker=broker, renew_seconds=0.05)
    async with rig.serving():
        await broker.until(4)
    assert broker.heard[:4] == [{"work": 3}] * 4


async def test_an_outage_is_waited_out() -> None:
    broker = Listening()
    broker.away = True
    rig = Rig(slots=3, broker=broker)
    async with rig.serving() as pool:
        await anyio.wait_all_tasks_blocked()
        pool.resize(4)
        broker.away = False
        await broker.until(1)
    assert broker.heard == [{"work": 4}]


async def test_who_cannot_start_a_message_at_once_does_not_wait_for_one() -> None:
    """Paused, full or stopped: a broker must not set one aside for it."""
    broker = Listening()
    rig = Rig(slots=1, queues=("one", "two"), broker=broker)
    gate = anyio.Event()

    @task(queue="one", into=rig.registry)
    async def hold(context: Context) -> None:
        await gate.wait()

    async with rig.serving() as pool:
        await broker.until(1)
        pool.pause(QueueName("two"))
        await broker.until_withdrawn("two")
        pool.resume(QueueName("two"))
        await rig.send(hold)
        await broker.until_withdrawn("one")
        gate.set()
        pool.stop_intake()
        await broker.until_withdrawn("two")
