"""Nothing outlives hive, and hive outlives its zygote."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fetch_harness import alive, idle, running, text_of, until, warm
from hive.ingest.fetching import ChildDied, FetchDone
from pools.fetch.zygote import ZygoteGone

SUPPORT = Path(__file__).parents[1] / "support"


def start_hive(steps: list[list[object]], count: int) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(SUPPORT / "fetch_hive.py"), json.dumps(steps), str(count)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HIVE_POSTGRES__DSN": "postgresql://secret"},
    )


async def pids_of(hive: "subprocess.Popen[str]", count: int) -> set[int]:
    assert hive.stdout is not None
    lines = [await asyncio.to_thread(hive.stdout.readline) for _ in range(count)]
    return {pid for line in lines for pid in json.loads(line).values()}


@pytest.mark.parametrize("own_session", [False, True])
async def test_a_killed_hive_leaves_no_process(own_session: bool) -> None:
    with start_hive([["grandchild", own_session], ["block"]], 3) as hive:
        pids = await pids_of(hive, 3)
        assert len(pids) == 7
        assert all(map(alive, pids))
        hive.kill()
        took = await until(lambda: not any(map(alive, pids)))
    print(f"\nall {len(pids)} processes were gone {took * 1e3:.0f} ms after hive")


async def test_a_killed_hive_leaves_no_stopped_child() -> None:
    with start_hive([["grandchild", False], ["stop_self"]], 1) as hive:
        pids = await pids_of(hive, 1)
        hive.kill()
        await until(lambda: not any(map(alive, pids)))


async def test_hive_and_its_zygote_killed_together_leave_no_child() -> None:
    with start_hive([["grandchild", False], ["sleep", 600]], 1) as hive:
        assert hive.stdout is not None
        told = json.loads(await asyncio.to_thread(hive.stdout.readline))
        os.kill(told["zygote"], signal.SIGSTOP)  # it can do nothing any more
        hive.kill()
        # The child sees its own socket close, and takes its group along.
        await until(lambda: not alive(told["child"]) and not alive(told["grandchild"]))
        os.kill(told["zygote"], signal.SIGCONT)
        await until(lambda: not alive(told["zygote"]))


async def test_ctrl_c_and_a_group_wide_sigterm_reach_hive_alone() -> None:
    async with running() as hive:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(hive.zygote.pid, number)
        assert isinstance((await hive.frames(["documents", 1]))[-1], FetchDone)
        assert hive.children.nursery.zygote_pid == hive.zygote.pid
        assert os.getsid(hive.zygote.pid) == hive.zygote.pid


async def test_a_killed_zygote_takes_its_children_along_and_is_replaced() -> None:
    async with running() as hive:
        zygote = hive.children.nursery.zygote_pid
        async with hive.session(["grandchild", False], ["block"]) as session:
            frames = session.frames()
            grandchild = int(text_of([await anext(frames)], "grandchild"))
            os.kill(zygote, signal.SIGKILL)
            with pytest.raises(ChildDied) as raised:
                await anext(frames)
            assert raised.value.detail.exit == "signal"
            assert "forked from" in raised.value.summary
            await until(lambda: not alive(session.pid) and not alive(grandchild))
        frames_after = await hive.frames(["documents", 1])  # waits for the new one
        assert isinstance(frames_after[-1], FetchDone)
        assert hive.children.nursery.zygote_pid != zygote
        assert [exit.exit for exit in hive.exits] == ["signal", "clean"]


async def test_a_zygote_killed_again_and_again() -> None:
    async with running() as hive:
        for _ in range(3):
            os.kill(hive.children.nursery.zygote_pid, signal.SIGKILL)
            assert isinstance((await hive.frames(["documents", 1]))[-1], FetchDone)


async def test_a_silent_zygote_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pools.fetch.nursery.ANSWER_SECONDS", 0.3)
    async with idle() as hive:
        nursery = hive.children.nursery
        zygote = nursery.zygote_pid
        os.kill(zygote, signal.SIGSTOP)
        assert not await nursery.run_once()
        monkeypatch.setattr("pools.fetch.nursery.ANSWER_SECONDS", 30)
        assert await nursery.run_once()
        assert nursery.zygote_pid != zygote
        assert not alive(zygote)


async def test_the_pulse_beats_with_each_answer() -> None:
    async with idle() as hive:
        await asyncio.sleep(0.01)
        before = hive.children.pulse.age_seconds
        assert before >= 0.01
        began = time.monotonic()
        await hive.children.nursery.run_once()
        assert hive.children.pulse.age_seconds <= time.monotonic() - began
        assert hive.children.pulse.fresh


@pytest.mark.parametrize("step", [["documents", 1], ["die", 9]])
async def test_a_birth_and_an_end_that_are_heard_of_at_once(
    step: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where hive is late: its loop is busy, or its machine."""
    async with warm() as hive:
        await hive.frames(["documents", 1])
        zygote = hive.zygote
        reports = zygote.reports

        def all_at_once() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            while not any(each["op"] == "exited" for each in found):
                found += reports()
                time.sleep(0.001)
            return found

        monkeypatch.setattr(zygote, "reports", all_at_once)
        with contextlib.suppress(ChildDied):
            await hive.frames(step)
        assert hive.children.nursery.living == 0
        assert hive.exits[-1].exit == ("clean" if step[0] == "documents" else "signal")
        assert (hive.exits[-1].peak_memory_bytes or 0) > 0


async def test_a_birth_and_the_zygotes_own_end_that_are_heard_of_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running() as hive:
        await hive.frames(["documents", 1])
        reports = hive.zygote.reports

        def spawned_and_gone() -> Iterator[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            while not any(each["op"] == "spawned" for each in found):
                found += reports()
                time.sleep(0.001)
            yield from found
            raise ZygoteGone

        monkeypatch.setattr(hive.zygote, "reports", spawned_and_gone)
        with pytest.raises(ChildDied):
            await hive.frames(["block"])
        assert hive.children.nursery.living == 0
        assert hive.exits[-1].exit == "signal"
        assert isinstance((await hive.frames(["documents", 1]))[-1], FetchDone)


async def test_a_zygote_that_has_grown_fat_is_let_go_when_unused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with idle() as hive:
        nursery = hive.children.nursery
        zygote = nursery.zygote_pid
        await hive.frames(["documents", 1])
        await nursery.run_once()
        assert nursery.zygote_pid == zygote  # in use a moment ago
        monkeypatch.setattr("pools.fetch.nursery.IDLE_SECONDS", -1)
        await nursery.run_once()
        assert nursery.zygote_pid != zygote
        assert not alive(zygote)
        fresh = nursery.zygote_pid
        await nursery.run_once()
        assert nursery.zygote_pid == fresh  # it is slim: nothing to gain


async def test_ending_the_service_ends_everything() -> None:
    async with running() as hive, hive.session(["block"]) as session:
        pids = {session.pid, hive.children.nursery.zygote_pid}
        hive.children.nursery.close()
        await until(lambda: not any(map(alive, pids)))
