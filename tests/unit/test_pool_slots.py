import asyncio

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pools.slots import Slots


def test_grab_takes_what_is_free_and_no_more():
    slots = Slots(3)
    assert slots.grab(2) == 2
    assert slots.grab(5) == 1
    assert slots.grab(1) == 0
    slots.release(3)
    assert (slots.free, slots.in_use) == (3, 0)


def test_returning_more_than_was_taken_is_refused():
    slots = Slots(2)
    slots.grab(1)
    with pytest.raises(RuntimeError):
        slots.release(2)


async def test_waiters_are_served_in_the_order_they_came():
    slots = Slots(1)
    slots.grab(1)
    order: list[str] = []

    async def wait(name: str) -> None:
        await slots.acquire(1)
        order.append(name)

    async with anyio.create_task_group() as group:
        for name in "abc":
            group.start_soon(wait, name)
            await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            assert slots.grab(1) == 0, "nobody passes those who wait"
            slots.release()
            await anyio.wait_all_tasks_blocked()
    assert order == ["a", "b", "c"]


async def test_one_that_wants_many_leaves_the_others_their_part():
    slots = Slots(4)
    slots.grab(4)
    got: dict[str, int] = {}

    async def wait(name: str, most: int) -> None:
        got[name] = await slots.acquire(most)

    async with anyio.create_task_group() as group:
        group.start_soon(wait, "greedy", 100)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(wait, "modest", 1)
        await anyio.wait_all_tasks_blocked()
        slots.release(4)
    assert got == {"greedy": 2, "modest": 1}


async def test_a_wait_cancelled_in_the_turn_of_its_grant_gives_the_slots_back():
    slots = Slots(1)
    slots.grab(1)
    waiter = asyncio.ensure_future(slots.acquire(1))
    await anyio.wait_all_tasks_blocked()
    slots.release()
    assert slots.in_use == 1, "granted already"
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert slots.free == 1


async def test_a_cancelled_waiter_does_not_swallow_a_slot():
    slots = Slots(1)
    slots.grab(1)
    first = asyncio.ensure_future(slots.acquire(1))
    second = asyncio.ensure_future(slots.acquire(1))
    await anyio.wait_all_tasks_blocked()
    first.cancel()
    slots.release()
    assert await second == 1
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_growing_lets_waiters_in_and_shrinking_takes_slots_as_they_return():
    slots = Slots(1)
    slots.grab(1)
    waiter = asyncio.ensure_future(slots.acquire(1))
    await anyio.wait_all_tasks_blocked()
    slots.resize(2)
    assert await waiter == 1
    slots.resize(1)
    assert slots.free == 0
    slots.release()
    assert slots.free == 0
    slots.release()
    assert slots.free == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(["grab", "release", "resize", "acquire", "cancel"]), st.integers(0, 5))
    )
)
def test_no_sequence_of_steps_loses_or_invents_a_slot(steps: list[tuple[str, int]]):
    async def play() -> None:
        slots = Slots(3)
        held = 0
        waiters: list[asyncio.Future[int]] = []
        for step, number in steps:
            match step:
                case "grab":
                    held += slots.grab(number)
                case "release" if held:
                    slots.release()
                    held -= 1
                case "resize":
                    slots.resize(number)
                case "acquire":
                    waiters.append(asyncio.ensure_future(slots.acquire(max(1, number))))
                case "cancel" if waiters:
                    waiters[number % len(waiters)].cancel()
                case _:
                    pass
            if number % 2:
                await asyncio.sleep(0)
        for waiter in waiters:
            waiter.cancel()  # those that were granted keep what they got
        for answer in await asyncio.gather(*waiters, return_exceptions=True):
            held += answer if isinstance(answer, int) else 0
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert slots.in_use == held
        slots.release(held)
        slots.resize(7)
        assert slots.grab(9) == 7

    asyncio.run(play())
