"""The event loop's lag, sampled; and a thread that says where the loop stands when it does not turn.

Both use CLOCK_MONOTONIC, not the boot-time clock: a machine that was suspended has not been blocked.
"""

import sys
import threading
import time
import traceback
from collections import deque
from types import FrameType

import anyio

from hive.events import Events, LoopStalled
from hive.logger import get_logger
from hive.settings import Probes

log = get_logger(__name__)

WINDOW_SAMPLES = 600
"""A minute at the shipped ten samples a second."""


class LoopMonitor:
    """``run`` is the service. ``p50_seconds``, ``p99_seconds`` and ``worst_seconds`` look back one window."""

    def __init__(self, settings: Probes, events: Events) -> None:
        self._sample_seconds = settings.loop_sample_seconds
        self._stall_seconds = settings.loop_stall_seconds
        self._events = events
        self._lags: deque[float] = deque(maxlen=WINDOW_SAMPLES)
        self._turned_at = time.monotonic()
        self._stop = threading.Event()
        self.stalls = 0

    async def run(self) -> None:
        """Sample until cancelled; the watching thread ends with it."""
        self._stop = threading.Event()
        self._turned_at = time.monotonic()
        watcher = threading.Thread(
            target=self._watch,
            args=(self._stop, threading.get_ident()),
            name="hive-loop-watch",
            daemon=True,
        )
        watcher.start()
        try:
            while True:
                await self.run_once()
        finally:
            self._stop.set()

    async def run_once(self) -> None:
        """One sample: sleep, and see how much longer it took."""
        before = time.monotonic()
        await anyio.sleep(self._sample_seconds)
        now = time.monotonic()
        lag = max(0.0, now - before - self._sample_seconds)
        self._turned_at = now
        self._lags.append(lag)
        if lag >= self._stall_seconds:
            self.stalls += 1
            self._events.publish(LoopStalled(seconds=lag))

    @property
    def p50_seconds(self) -> float:
        """Half of the samples were below."""
        return self._percentile(0.50)

    @property
    def p99_seconds(self) -> float:
        """All but one in a hundred were below."""
        return self._percentile(0.99)

    @property
    def worst_seconds(self) -> float:
        """The largest sample."""
        return max(self._lags, default=0.0)

    def _percentile(self, share: float) -> float:
        ordered = sorted(self._lags)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def _watch(self, stop: threading.Event, loop_thread: int) -> None:
        """In a thread: dump all stacks once for each time the loop stands still."""
        dumped_for = 0.0
        while not stop.wait(min(0.25, self._stall_seconds / 4)):
            turned_at = self._turned_at
            stood = time.monotonic() - turned_at - self._sample_seconds
            if stood >= self._stall_seconds and dumped_for != turned_at:
                dumped_for = turned_at
                log.error("loop.stalled", seconds=round(stood, 1), stacks=_stacks(loop_thread))


def _stacks(loop_thread: int) -> str:
    """The stacks of all threads, the loop's first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    frames: dict[int, FrameType] = sys._current_frames()  # pyright: ignore[reportPrivateUsage]
    own = threading.get_ident()
    order = sorted((ident for ident in frames if ident != own), key=lambda ident: ident != loop_thread)
    return "\n".join(
        f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frames[ident]))}"
        for ident in order
    )
