"""Every way in which a child can end, and the name that it is given."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from fetch_harness import MIB, alive, busy_children_of, running, text_of, until, warm
from hive.ingest.fetching import BatchReady, ChildDied, Frame, Progressed


async def died(hive: Any, *steps: list[Any], **fields: Any) -> ChildDied:
    with pytest.raises(ChildDied) as raised:
        await hive.frames(*steps, **fields)
    assert hive.exits[-1].exit == raised.value.detail.exit
    return raised.value


async def drain(frames: AsyncIterator[Frame]) -> None:
    async for _ in frames:
        pass


@pytest.mark.parametrize("how", ["heap", "map"])
async def test_too_much_memory(how: str) -> None:
    async with warm() as hive:
        error = await died(hive, ["documents", 1], ["allocate", how], memory_mb=256)
    assert error.detail.exit == "out_of_memory"
    assert 200 * MIB < (error.detail.peak_memory_bytes or 0) < 512 * MIB


@pytest.mark.parametrize("step", [["allocate", "heap"], ["allocate_in_a_group"]])
async def test_growth_faster_than_the_samples_meets_the_kernel(
    step: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pools.fetch.watch.SAMPLE_SECONDS", 3600)
    async with warm() as hive:
        error = await died(hive, step, memory_mb=256)
    assert error.detail.exit == "out_of_memory"
    assert error.detail.signal is None  # it ended by itself, of a MemoryError
    assert (error.detail.peak_memory_bytes or 0) < 400 * MIB


async def test_a_grandchilds_memory_counts() -> None:
    async with warm() as hive:
        error = await died(hive, ["hungry_grandchild"], ["sleep", 600], memory_mb=256)
    assert error.detail.exit == "out_of_memory"


@pytest.mark.parametrize("step", [["sleep", 600], ["block"], ["stop_self"]])
async def test_silence_is_a_stall(step: list[Any]) -> None:
    async with warm() as hive:
        error = await died(hive, ["documents", 1], step, stall_seconds=0.4)
    assert error.detail.exit == "stalled"


async def test_a_sign_of_life_is_no_stall() -> None:
    async with warm() as hive:
        frames = await hive.frames(["drip", 14, 0.25], stall_seconds=3)
    assert sum(isinstance(frame, Progressed) for frame in frames) == 14


async def test_short_waits_do_not_hide_a_stall() -> None:
    async with warm() as hive, hive.session(["sleep", 600], stall_seconds=0.3) as session:

        async def read_impatiently() -> None:
            while True:
                with anyio.move_on_after(0.05):
                    await anext(session.frames())

        with pytest.raises(ChildDied) as raised:
            await read_impatiently()
    assert raised.value.detail.exit == "stalled"


async def test_the_wall_clock() -> None:
    async with warm() as hive:
        error = await died(hive, ["drip", 1000, 0.02], wall_seconds=0.5)
    assert error.detail.exit == "wall_clock"


async def test_the_wall_clock_runs_while_nobody_reads() -> None:
    async with warm() as hive, hive.session(["endless", 2000], wall_seconds=0.4) as session:
        await until(lambda: not alive(session.pid))
        frames = session.frames()
        assert isinstance(await anext(frames), BatchReady)  # what it had said before is not lost
        with pytest.raises(ChildDied) as raised:
            await drain(frames)
    assert raised.value.detail.exit == "wall_clock"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
async def test_a_signal(number: int) -> None:
    async with warm() as hive:
        error = await died(hive, ["documents", 1], ["die", number])
    assert (error.detail.exit, error.detail.signal) == ("signal", number)
    assert signal.Signals(number).name in error.summary


async def test_a_signal_from_outside() -> None:
    async with warm() as hive, hive.session(["documents", 1], ["checkpoint", 1], ["sleep", 600]) as session:
        frames = session.frames()
        await anext(frames)
        os.kill(session.pid, signal.SIGKILL)
        with pytest.raises(ChildDied) as raised:
            await drain(frames)
    assert raised.value.detail.exit == "signal"


@pytest.mark.parametrize(
    ("step", "says"),
    [
        (["exit", 3], "ended with an error"),
        (["exit", 0], "ended with an error"),
        (["garbage", "\x00\x00\x00\x02\xff\xff"], "unknown kind"),
        (["garbage", "\xff\xff\xff\xff\xff"], "length"),
        (["garbage", "\x00\x00\x00\x03\x17{}"], "DONE frame does not fit"),
        (["garbage", "\x00\x00\x00\x03\x01{}"], "may not send"),
    ],
)
async def test_nonsense(step: list[Any], says: str) -> None:
    async with warm() as hive:
        error = await died(hive, step)
    assert error.detail.exit == "error"
    assert says in error.summary


async def test_a_frame_cut_off_by_the_childs_end() -> None:
    async with warm() as hive:
        error = await died(hive, ["garbage", "\x00\x00\x10\x00\x17{"], ["exit", 0])
    assert error.detail.exit == "error"


@pytest.mark.parametrize("own_session", [False, True])
async def test_leaving_the_context_ends_the_child_and_its_descendants(own_session: bool) -> None:
    async with warm() as hive:
        async with hive.session(["grandchild", own_session], ["block"]) as session:
            grandchild = int(text_of([await anext(session.frames())], "grandchild"))
            assert alive(session.pid)
            assert alive(grandchild)
        assert not alive(session.pid)
        await until(lambda: not alive(grandchild))
    assert hive.exits[-1].exit == "cancelled"


async def test_a_finished_child_takes_its_descendants_along() -> None:
    async with warm() as hive:
        frames = await hive.frames(["grandchild", False])
        await until(lambda: not alive(int(text_of(frames, "grandchild"))))


async def test_cancelling_a_session_ends_its_child() -> None:
    async with warm() as hive:
        pids: list[int] = []

        async def work() -> None:
            async with hive.session(["checkpoint", 1], ["block"]) as session:
                pids.append(session.pid)
                async for _ in session.frames():
                    pass

        async with asyncio.TaskGroup() as group:
            task = group.create_task(work())
            await until(lambda: bool(pids))
            task.cancel()
        assert task.cancelled()
        assert not alive(pids[0])
    assert hive.exits[-1].exit == "cancelled"


async def test_cancelling_by_scope_ends_its_child_too() -> None:
    async with warm() as hive:
        with anyio.CancelScope() as scope:
            async with hive.session(["block"]) as session:
                scope.deadline = anyio.current_time() + 0.1
                async for _ in session.frames():
                    pass
        assert scope.cancelled_caught
        assert not alive(session.pid)


async def test_cancelling_a_start_leaves_no_child() -> None:
    async with running() as hive:
        await hive.frames(["documents", 1])
        zygote = hive.children.nursery.zygote_pid
        os.kill(zygote, signal.SIGSTOP)
        with anyio.move_on_after(0.2):
            await hive.frames(["block"])
        os.kill(zygote, signal.SIGCONT)
        await hive.frames(["documents", 1])
        await until(lambda: busy_children_of(zygote) == [])
