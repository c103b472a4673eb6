"""Every exit gets the name that its evidence deserves."""

import signal
from typing import Any

import pytest

from hive.outcomes import ExitDetail
from pools.fetch.exits import Ended, Evidence, describe, judge

MIB = 2**20


def evidence(status: int | None, **fields: Any) -> Evidence:
    given: dict[str, Any] = {
        "ended": Ended(status=status, peak_bytes=50 * MIB),
        "finished": False,
        "killed_for": None,
        "peak_bytes": 40 * MIB,
        "max_bytes": 100 * MIB,
        "oom_kills": 0,
    }
    return Evidence(**(given | fields))


@pytest.mark.parametrize(
    ("given", "name", "number"),
    [
        (evidence(0, finished=True), "clean", None),
        (evidence(0), "error", None),
        (evidence(3 << 8), "error", None),
        (evidence(3 << 8, finished=True), "error", None),
        (evidence(77 << 8), "out_of_memory", None),
        (evidence(signal.SIGSEGV), "signal", signal.SIGSEGV),
        (evidence(signal.SIGABRT, peak_bytes=95 * MIB), "out_of_memory", signal.SIGABRT),
        (evidence(signal.SIGTERM, peak_bytes=95 * MIB), "signal", signal.SIGTERM),
        (evidence(signal.SIGKILL), "signal", signal.SIGKILL),
        (evidence(signal.SIGKILL, oom_kills=1), "out_of_memory", signal.SIGKILL),
        (evidence(signal.SIGKILL, max_bytes=None, peak_bytes=10**12), "signal", signal.SIGKILL),
        (evidence(signal.SIGKILL, killed_for="stalled"), "stalled", None),
        (evidence(signal.SIGKILL, killed_for="wall_clock"), "wall_clock", None),
        (evidence(None), "signal", None),
    ],
)
def test_the_judgement(given: Evidence, name: str, number: int | None) -> None:
    detail = judge(given)
    assert (detail.exit, detail.signal) == (name, number)
    assert detail.peak_memory_bytes == max(given.peak_bytes, 50 * MIB)


@pytest.mark.parametrize(
    "name", ["clean", "error", "out_of_memory", "signal", "stalled", "wall_clock", "cancelled"]
)
def test_each_exit_has_a_line_for_people(name: str) -> None:
    assert describe(ExitDetail(exit=name)).startswith("the child")


def test_the_line_names_signal_and_memory() -> None:
    line = describe(ExitDetail(exit="signal", signal=11, peak_memory_bytes=64 * MIB))
    assert line == "the child was killed by SIGSEGV, peak memory 64 MiB"
    assert "signal 99" in describe(ExitDetail(exit="signal", signal=99))
