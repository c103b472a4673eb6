"""Runs that end in their first step share a task; nothing of one may reach the next."""

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import structlog

from hive.broker.port import Delivery
from hive.context import Context
from hive.errors import Transient
from hive.ids import QueueName
from hive.tenancy import current_tenant_or_none
from hive.testing.manual_clock import ManualClock
from patience import until
from pool_kit import Rig, declare
from pools.groups import TURN_SECONDS, is_cancelled
from pools.run import Run, StopReason

WORK = QueueName("work")
LEFT_BEHIND: contextvars.ContextVar[str] = contextvars.ContextVar("left_behind", default="nothing")
ENDS = ("completed", "failed", "retrying", "cancelled")


@asynccontextmanager
async def warm(rig: Rig, declared: Any, **arguments: Any) -> AsyncGenerator[None]:
    """The pool at work, having seen that the task ends without waiting. All later runs come in one claim."""
    async with rig.serving():
        await rig.send(declared, **arguments)
        await until(lambda: rig.settled)
        rig.settled.clear()
        rig.pool.pause(WORK)
        yield


async def run_all(rig: Rig, declared: Any, numbers: range, *outcomes: str) -> None:
    await rig.client.publish(
        [rig.client.message(declared, {"n": number}, tenant=rig.tenant) for number in numbers]
    )
    rig.pool.resume(WORK)
    await until(lambda: sum(event.outcome in (outcomes or ENDS) for event in rig.settled) >= len(numbers))


def run_of(rig: Rig, context: Context) -> Run:
    return next(run for run in rig.pool._runs() if run.delivery.id == context.id)


async def test_runs_that_do_not_wait_share_a_task_and_those_that_wait_have_one_each():
    rig = Rig(slots=4, prefetch=40, clock=ManualClock())  # no turn ends because of the time
    tasks: dict[bool, list[Any]] = {True: [], False: []}

    async def handler(context: Context, n: int) -> None:
        waits = n >= 20
        tasks[waits].append(asyncio.current_task())
        if waits:
            await anyio.lowlevel.checkpoint()

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        tasks[False].clear()
        await run_all(rig, declared, range(20))
        assert len(set(tasks[False])) <= 5, "one for each claim at most"
        rig.settled.clear()
        rig.pool.pause(WORK)
        await run_all(rig, declared, range(20, 40))
        assert len(set(tasks[True])) == 20
        assert not set(tasks[True][1:]) & set(tasks[False])


async def test_a_context_variable_is_not_seen_by_the_next_run():
    rig = Rig(slots=4, prefetch=40)
    seen: list[tuple[str, dict[str, Any], object]] = []

    async def handler(context: Context, n: int) -> None:
        seen.append((LEFT_BEHIND.get(), structlog.contextvars.get_contextvars(), context.tenant))
        assert current_tenant_or_none() == context.tenant
        if n % 3 == 1:
            LEFT_BEHIND.set(f"of run {n}")
        if n % 3 == 2:
            structlog.contextvars.bind_contextvars(tenant=context.tenant)

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        await run_all(rig, declared, range(40))
    assert set(rig.labels.values()) == {"completed"}
    assert seen == [("nothing", {}, rig.tenant)] * 41


async def _cancels_itself(_: Context) -> None:
    asyncio.current_task().cancel()  # pyright: ignore[reportOptionalMemberAccess]


async def _takes_it_back(_: Context) -> None:
    own = asyncio.current_task()
    assert own is not None
    own.cancel()
    own.uncancel()
    assert own.cancelling() == 0
    assert is_cancelled(own), "Python 3.11 delivers it all the same"


async def _times_out(_: Context) -> None:
    async with asyncio.timeout(0):  # noqa: ASYNC100
        pass


async def _leaves_a_scope(_: Context) -> None:
    with anyio.CancelScope() as scope:  # noqa: ASYNC100
        scope.cancel()


async def _leaves_a_timer(_: Context) -> None:
    own = asyncio.current_task()
    assert own is not None
    await anyio.lowlevel.checkpoint()
    asyncio.get_running_loop().call_soon(own.cancel)


@pytest.mark.parametrize(
    "leaving", [_cancels_itself, _takes_it_back, _times_out, _leaves_a_scope, _leaves_a_timer]
)
async def test_a_cancellation_does_not_reach_the_next_run(leaving: Callable[[Context], Awaitable[None]]):
    rig = Rig(slots=2, prefetch=40)
    ended: list[int] = []

    async def handler(context: Context, n: int) -> None:
        if n % 4 == 1:
            await leaving(context)
            return
        if n % 4 == 2:
            await anyio.lowlevel.checkpoint()  # where a cancellation of the one before would arrive
        ended.append(n)

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        ended.clear()
        await run_all(rig, declared, range(40))
        assert sorted(ended) == [n for n in range(40) if n % 4 != 1]
        assert rig.count("completed") == 40
        assert rig.pool.slots.in_use == 0


async def test_a_run_that_is_stopped_in_its_first_step_does_not_stop_the_next():
    rig = Rig(slots=2, prefetch=40)
    ended: list[int] = []

    async def handler(context: Context, n: int) -> None:
        if n % 3 == 1:
            run_of(rig, context).stop(StopReason.OPERATOR)
            return
        await anyio.lowlevel.checkpoint() if n % 3 == 2 else None
        ended.append(n)

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        ended.clear()
        await run_all(rig, declared, range(30))
        assert sorted(ended) == [n for n in range(30) if n % 3 != 1]
        assert rig.count("cancelled") == 10


async def test_a_task_that_waits_after_all_leaves_the_others_their_slots():
    rig = Rig(slots=4, prefetch=8)
    gate = asyncio.Event()
    inside = 0

    async def handler(context: Context, n: int) -> None:
        nonlocal inside
        if n:
            inside += 1
            await gate.wait()

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        await rig.client.publish(
            [rig.client.message(declared, {"n": n}, tenant=rig.tenant) for n in (0, 0, *range(1, 20))]
        )
        rig.pool.resume(WORK)
        await until(lambda: inside == 4)
        assert rig.pool.slots.in_use == 4
        gate.set()
        await until(lambda: rig.count("completed") == 21)
        assert rig.pool.slots.in_use == 0


@pytest.mark.parametrize("prefetch", [0, 1, 4])
@pytest.mark.parametrize("slots", [1, 3])
async def test_a_flood_that_never_waits_does_not_starve_its_neighbour(slots: int, prefetch: int):
    rig = Rig(slots=slots, prefetch=prefetch, queues=("flood", "quiet"))
    order: list[str] = []

    async def handler(context: Context) -> None:
        order.append(context.delivery.queue)

    flood = declare(rig, handler, "flood", name="flood")
    quiet = declare(rig, handler, "quiet", name="quiet")
    async with rig.serving():
        await rig.send(flood, 5000)
        await until(lambda: len(order) > 20)
        for _ in range(5):
            before = len(order)
            await rig.send(quiet)
            await until(lambda before=before: "quiet" in order[before:])
            # Runs that end at once also end while its claim is under way: a few claims' worth of them.
            assert order[before:].index("quiet") <= 8 * (slots + prefetch) + 3


async def test_a_neighbour_that_waits_for_a_slot_gets_the_next_one():
    rig = Rig(slots=1, prefetch=20, queues=("flood", "quiet"))
    order: list[str] = []

    async def handler(context: Context) -> None:
        order.append(context.delivery.queue)
        if len(order) == 6:  # the neighbour lines up while the flood has the slot
            await rig.send(quiet)
            await until(lambda: rig.pool._intakes[QueueName("quiet")].waiting == 1)

    flood = declare(rig, handler, "flood", name="flood")
    quiet = declare(rig, handler, "quiet", name="quiet")
    async with rig.serving():
        await rig.send(flood, 18)
        await until(lambda: rig.count("completed") == 19)
    assert order.index("quiet") <= 7


async def test_the_loop_has_its_turns_while_runs_follow_each_other():
    clock = ManualClock()
    rig = Rig(slots=2, prefetch=100, clock=clock)
    marks: list[str] = []

    async def handler(context: Context, n: int) -> None:
        marks.append("run")
        clock.advance(0.6 * TURN_SECONDS)

    async def ticker() -> None:
        while True:
            marks.append("turn")
            await asyncio.sleep(0)

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0), anyio.create_task_group() as group:
        group.start_soon(ticker)
        await run_all(rig, declared, range(90))
        group.cancel_scope.cancel()
    runs = max(len(part.split()) for part in " ".join(marks).split("turn"))
    assert runs <= 2, "the others' turn comes in time"


async def test_the_next_claim_is_under_way_while_the_rest_of_the_last_one_runs():
    rig = Rig(slots=2, prefetch=40, clock=ManualClock())  # no turn ends because of the time
    left: list[int] = []
    claim = rig.memory.claim

    async def watched(queue: QueueName, owner: Any, limit: int) -> list[Delivery]:
        left.append(rig.pool._intakes[WORK].waiting)
        return await claim(queue, owner, limit)

    async def handler(context: Context, n: int) -> None: ...

    rig.memory.claim = watched  # type: ignore[method-assign]
    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        left.clear()
        await run_all(rig, declared, range(400))
    assert left.count(20) >= 5, "half of it is left each time"


async def test_a_pool_that_stops_amid_runs_that_follow_each_other_hands_back_the_rest():
    rig = Rig(slots=4, prefetch=40, clock=ManualClock())

    async def handler(context: Context, n: int) -> None:
        if n == 10:
            rig.pool.stop_intake()

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        await run_all(rig, declared, range(30), "completed", "released")
        assert (rig.count("completed"), rig.count("released")) == (11, 19)
        assert rig.pool.slots.in_use == 0


async def test_a_pool_whose_slots_vanish_amid_runs_that_follow_each_other_goes_on_with_new_ones():
    rig = Rig(slots=4, prefetch=40, clock=ManualClock())

    async def handler(context: Context, n: int) -> None:
        if n == 10:
            rig.pool.resize(0)

    declared = declare(rig, handler)
    async with warm(rig, declared, n=0):
        await rig.client.publish(
            [rig.client.message(declared, {"n": n}, tenant=rig.tenant) for n in range(30)]
        )
        rig.pool.resume(WORK)
        await until(lambda: rig.count("released") == 19 and not rig.pool.running())
        assert rig.pool.slots.in_use == 0
        rig.pool.resize(2)
        await until(lambda: rig.count("completed") == 30)


@pytest.mark.parametrize("seed", range(8))
async def test_no_slot_and_no_run_is_lost_whatever_ends_how(seed: int):
    """Anything a handler may do and anything that may be done to the pool, in any order."""
    spread = random.Random(seed)
    slots, prefetch = spread.choice([1, 2, 5, 16]), spread.choice([0, 1, 7, 40])
    rig = Rig(slots=slots, prefetch=prefetch, queues=("work", "other"), cancel_seconds=2)
    inside: dict[str, int] = {"now": 0, "most": 0}
    foreign: list[str] = []
    runs: dict[tuple[object, int], int] = {}

    async def handler(context: Context, n: int) -> None:
        key = (context.id, context.fence)
        runs[key] = runs.get(key, 0) + 1
        inside["now"] += 1
        inside["most"] = max(inside["most"], inside["now"])
        if LEFT_BEHIND.get() != "nothing" or current_tenant_or_none() != context.tenant:
            foreign.append(LEFT_BEHIND.get())
        try:
            match spread.randrange(12):
                case 0:
                    await anyio.lowlevel.checkpoint()
                case 1:
                    raise ValueError("no")
                case 2:
                    raise Transient("passes", retry_after_seconds=0)
                case 3:
                    asyncio.current_task().cancel()  # pyright: ignore[reportOptionalMemberAccess]
                case 4:
                    LEFT_BEHIND.set("a trace")
                case 5:
                    await anyio.sleep(spread.random() * 0.01)
                case 6:
                    run_of(rig, context).stop(StopReason.OPERATOR)
                case 7:
                    await _takes_it_back(context)
                case _:
                    pass
        finally:
            inside["now"] -= 1

    declared = [declare(rig, handler, queue, name=f"t_{queue}") for queue in ("work", "other")]

    async def meddle() -> None:
        while True:
            await anyio.sleep(spread.random() * 0.01)
            match spread.randrange(5):
                case 0:
                    rig.pool.resize(spread.choice([0, 1, slots]))
                case 1:
                    rig.pool.pause(WORK)
                case 2:
                    rig.pool.resume(WORK)
                case 3 if rig.pool._runs():
                    spread.choice(rig.pool._runs()).stop(StopReason.OPERATOR)
                case _:
                    pass

    jobs: set[object] = set()
    for _ in range(2):  # cancelled amid it all, and run again
        with anyio.move_on_after(0.3):
            async with rig.serving(), anyio.create_task_group() as group:
                for each in declared:
                    messages = [rig.client.message(each, {"n": n}, tenant=rig.tenant) for n in range(150)]
                    jobs |= set(await rig.client.publish(messages))
                group.start_soon(meddle)
                await anyio.sleep_forever()
        assert (rig.pool.slots.in_use, rig.pool.slots.written_off, rig.pool._runs()) == (0, 0, [])
    async with rig.serving():
        rig.pool.resize(slots)
        rig.pool.resume(WORK)
        ended = ("completed", "failed", "cancelled")
        await until(lambda: {e.job for e in rig.settled if e.outcome in ended} == jobs, seconds=60)
        await until(lambda: not rig.pool._runs())
    assert rig.pool.slots.in_use == 0
    assert inside["most"] <= slots
    assert inside["now"] == 0
    assert not foreign
    assert set(runs.values()) == {1}, "one claim, one run"
