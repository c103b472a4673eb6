"""How a child ended, and whose doing it was: the one place where an exit is given its name.

| exit | evidence, strongest first |
|---|---|
| stalled, wall_clock, cancelled, out_of_memory | hive killed it, and this is why |
| out_of_memory | a MemoryError, a death near the limit, or the kernel's OOM killer struck meanwhile |
| clean | status 0 after its last frame |
| signal | a signal that is not explained by the above |
| error | anything else: an exit status, a frame that means nothing, silence |
"""

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hive.outcomes import ExitDetail

OUT_OF_MEMORY_STATUS: Final = 77
"""What a child exits with after a MemoryError."""

_NEAR: Final = (
    0.9  # an abort this close to the limit is the limit's doing: C libraries abort on a failed malloc
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What the kernel says of an ended child. ``status``: wait4's; None when its zygote died with it."""

    status: int | None
    peak_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known when an exit is judged. ``killed_for``: the exit's name, if hive killed the child."""

    ended: Ended
    finished: bool  # its last frame had come
    killed_for: str | None
    peak_bytes: int
    max_bytes: int | None
    oom_kills: int  # that the kernel made while it lived


def judge(evidence: Evidence) -> ExitDetail:
    """The exit's name, signal and peak memory."""
    status = evidence.ended.status
    number = os.WTERMSIG(status) if status is not None and os.WIFSIGNALED(status) else None
    if evidence.killed_for is not None:
        number = None  # it was ours, and says nothing
    peak = max(evidence.peak_bytes, evidence.ended.peak_bytes or 0) or None
    return ExitDetail(exit=_name(evidence, status, number, peak or 0), signal=number, peak_memory_bytes=peak)


def _name(evidence: Evidence, status: int | None, number: int | None, peak: int) -> str:
    if evidence.killed_for is not None:
        return evidence.killed_for
    if status is None:
        return "signal"
    if number is None:
        code = os.WEXITSTATUS(status)
        if code == OUT_OF_MEMORY_STATUS:
            return "out_of_memory"
        return "clean" if code == 0 and evidence.finished else "error"
    near = evidence.max_bytes is not None and peak >= _NEAR * evidence.max_bytes
    if near and number in (signal.SIGKILL, signal.SIGABRT, signal.SIGSEGV):
        return "out_of_memory"
    if number == signal.SIGKILL and evidence.oom_kills > 0:
        return "out_of_memory"
    return "signal"


def describe(detail: ExitDetail) -> str:
    """One line for people."""
    peak = f", peak memory {detail.peak_memory_bytes / 2**20:.0f} MiB" if detail.peak_memory_bytes else ""
    match detail.exit:
        case "out_of_memory":
            return f"the child ran out of memory{peak}"
        case "stalled":
            return f"the child yielded nothing for too long and was ended{peak}"
        case "wall_clock":
            return f"the child ran longer than it may and was ended{peak}"
        case "signal" if detail.signal is not None:
            return f"the child was killed by {_signal_name(detail.signal)}{peak}"
        case "signal":
            return "the child died with the process it was forked from"
        case "cancelled":
            return f"the child was ended, since its job was{peak}"
        case "clean":
            return "the child ended before it had said all"
        case _:
            return f"the child ended with an error{peak}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def kernel_oom_kills() -> int:
    """How often the kernel's OOM killer has struck on this host since boot; 0 where it does not say."""
    with suppress(OSError, ValueError), open("/proc/vmstat", encoding="ascii") as figures:
        for line in figures:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0
