"""Sweeps under a clock that the test moves: what an outage must not lead to."""

from collections.abc import Sequence

from hive.broker.memory import Memory
from hive.broker.port import Depth, Message, Settlement, Swept, Verdict
from hive.errors import StoreDown
from hive.ids import QueueName, TaskName, new_message_id, new_process_id
from hive.outcomes import Completed
from hive.settings import Leases
from hive.testing.manual_clock import ManualClock
from supervisor.sweeper import Pruner, Sweeper

QUEUE = QueueName("coordination")


class Faulty(Memory):
    """A memory broker whose store can be taken away."""

    away = False

    def _ask(self) -> None:
        if self.away:
            raise StoreDown("redis", "sweeping")

    async def sweep(self, queues: Sequence[QueueName], *, expire_leases: bool = True) -> Swept:
        self._ask()
        return await super().sweep(queues, expire_leases=expire_leases)

    async def depth(self, queue: QueueName) -> Depth:
        self._ask()
        return await super().depth(queue)


def message(**options) -> Message:
    return Message(id=new_message_id(), queue=QUEUE, task=TaskName("x"), tenant=None, args={}, **options)


async def test_what_is_due_is_promoted_and_what_is_abandoned_comes_back() -> None:
    clock = ManualClock()
    broker = Memory(clock)
    sweeper = Sweeper({"memory": (broker, [QUEUE])}, Leases(), clock=clock)
    await broker.publish([message(), message(delay_seconds=90)])
    await broker.claim(QUEUE, new_process_id(), 10)
    clock.advance(61)
    await sweeper.run_once()
    assert (await broker.depth(QUEUE)).waiting == 1
    clock.advance(30)
    await sweeper.run_once()
    assert (await broker.depth(QUEUE)).waiting == 2


async def test_after_an_outage_leases_that_ran_out_meanwhile_can_be_renewed_before_they_are_taken() -> None:
    clock = ManualClock()
    broker, other = Faulty(clock), Memory(clock)
    sweeper = Sweeper({"redis": (broker, [QUEUE]), "ledger": (other, [QUEUE])}, Leases(), clock=clock)
    for one in (broker, other):
        await one.publish([message()])
    (alive,) = await broker.claim(QUEUE, new_process_id(), 1)
    broker.away = True
    for _ in range(300):
        clock.advance(1)
        await sweeper.run_once()
        assert sweeper.pulse.fresh, "an outage is no reason to restart the service"
    await other.claim(QUEUE, new_process_id(), 1)
    broker.away = False
    for _ in range(59):
        await sweeper.run_once()
        assert await broker.claim(QUEUE, new_process_id(), 1) == [], "its handler runs on"
        clock.advance(1)
    assert await broker.renew([alive]) == []
    for _ in range(40):
        clock.advance(1)
        await sweeper.run_once()
    assert await broker.settle([Settlement(delivery=alive, outcome=Completed())]) == [Verdict.ACCEPTED]
    assert (await other.depth(QUEUE)).waiting == 1, "the other broker was swept all along"


async def test_a_short_outage_holds_nothing_up() -> None:
    clock = ManualClock()
    broker = Faulty(clock)
    sweeper = Sweeper({"redis": (broker, [QUEUE])}, Leases(), clock=clock)
    await broker.publish([message(delay_seconds=5)])
    broker.away = True
    for _ in range(10):
        await sweeper.run_once()
        clock.advance(1)
    broker.away = False
    await sweeper.run_once()
    assert (await broker.depth(QUEUE)).waiting == 1


async def test_after_the_hold_what_nobody_renewed_is_taken_over() -> None:
    clock = ManualClock()
    broker = Faulty(clock)
    sweeper = Sweeper({"redis": (broker, [QUEUE])}, Leases(), clock=clock)
    await broker.publish([message()])
    await broker.claim(QUEUE, new_process_id(), 1)
    broker.away = True
    for _ in range(300):
        await sweeper.run_once()
        clock.advance(1)
    broker.away = False
    for _ in range(62):
        await sweeper.run_once()
        clock.advance(1)
    assert len(await broker.claim(QUEUE, new_process_id(), 1)) == 1


async def test_prunes_run_one_after_the_other_and_an_outage_is_waited_out() -> None:
    ran: list[str] = []

    async def away() -> int:
        raise StoreDown("postgres", "pruning")

    async def prune() -> int:
        ran.append("jobs")
        return 3

    pruner = Pruner({"away": away, "jobs": prune}, clock=ManualClock())
    await pruner.run_once()
    assert ran == ["jobs"]


async def test_what_is_due_is_promoted_while_leases_are_spared() -> None:
    clock = ManualClock()
    broker = Faulty(clock)
    sweeper = Sweeper({"redis": (broker, [QUEUE])}, Leases(), clock=clock)
    await broker.publish([message(), message(delay_seconds=400)])
    await broker.claim(QUEUE, new_process_id(), 1)
    broker.away = True
    for _ in range(390):
        await sweeper.run_once()
        clock.advance(1)
    broker.away = False
    for _ in range(20):
        await sweeper.run_once()
        clock.advance(1)
    depth = await broker.depth(QUEUE)
    assert (depth.waiting, depth.running) == (1, 1)
