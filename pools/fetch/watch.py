"""Limits of a child that hold whether or not anyone reads its frames: memory and wall clock.

Sampled from a timer of the loop, not from a task: there is nothing to await, and nobody has to own it. The
stall limit is kept by the reader itself (``stream``), since it counts only while hive reads.
"""

import asyncio
from typing import Final

from pools.fetch.memory import resident_bytes
from pools.fetch.nursery import Child

SAMPLE_SECONDS: Final = 0.1


class Watch:
    """Kills ``child`` when it holds more than ``max_bytes`` or lives longer than ``wall_seconds``.

    ``killed_for``: the exit's name once hive has killed it, whoever in hive did. ``peak_bytes``: highest
    sample.
    """

    def __init__(self, child: Child, *, max_bytes: int | None, wall_seconds: float | None) -> None:
        self._child = child
        self._max_bytes = max_bytes
        self._loop = asyncio.get_running_loop()
        self._deadline = None if wall_seconds is None else self._loop.time() + wall_seconds
        self.killed_for: str | None = None
        self.peak_bytes = 0
        self._timer = self._loop.call_later(self._pause(), self._sample)

    def kill(self, exit_name: str) -> None:
        """Kill the child and its group for this reason; the first reason counts."""
        if self.killed_for is None and not self._child.exited.done():
            self.killed_for = exit_name
        self._child.kill()

    def stop(self) -> None:
        """No more samples."""
        self._timer.cancel()

    def _pause(self) -> float:
        if self._deadline is None:
            return SAMPLE_SECONDS
        return max(0.0, min(SAMPLE_SECONDS, self._deadline - self._loop.time()))

    def _sample(self) -> None:
        if self._child.exited.done():
            return
        held = resident_bytes(self._child.pid)
        self.peak_bytes = max(self.peak_bytes, held)
        if self._deadline is not None and self._loop.time() >= self._deadline:
            self.kill("wall_clock")
        elif self._max_bytes is not None and held > self._max_bytes:
            self.kill("out_of_memory")
        else:
            self._timer = self._loop.call_later(self._pause(), self._sample)
