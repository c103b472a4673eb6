"""Drain: which running jobs may finish in the grace time, and which are handed back at once.

    plan ─▶ those that cannot finish: stop at once ─┐
         └▶ the others: wait ── grace over ─▶ stop ─┴▶ handlers ended ─▶ Released, written ─▶ report

A handler that listens to ``context.stopping`` is told first and has ``cancel_seconds`` to store a checkpoint;
one that does not is cancelled at once. Nothing is handed back before its handler has ended: another process
could claim it while it still runs here.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio

from hive.clock import Clock
from pools.history import History
from pools.run import Run, StopReason

TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """What became of the jobs in hand: counts.

    ``finished`` came to an outcome of their own. ``handed_back`` were released, prefetched ones included.
    ``abandoned`` did not end in time, or could not be written: their leases end and they run again elsewhere.
    """

    finished: int
    handed_back: int
    abandoned: int


def cannot_finish(run: Run, history: History, *, now: float, left_seconds: float) -> bool:
    """Whether ``run`` would still be running in ``left_seconds``, as its task's history says.

    One that nothing can be said about might finish. One whose handler was not entered has nothing to lose.
    """
    if run.entered_at is None:
        return True
    remaining = history.remaining(run.delivery.task, now - run.entered_at)
    return remaining is not None and remaining > left_seconds


class Drain:
    """One drain of one pool. ``active`` gives the runs that hold a slot and have not ended.

    It ends when there are none, or ``cancel_seconds`` after the grace time. ``shorten`` brings that nearer.
    """

    def __init__(
        self,
        active: Callable[[], Sequence[Run]],
        *,
        history: History,
        clock: Clock,
        grace_seconds: float,
        cancel_seconds: float,
    ) -> None:
        self._active = active
        self._history = history
        self._clock = clock
        self._cancel_seconds = cancel_seconds
        self._ends = clock.monotonic() + grace_seconds
        self._told: dict[Run, float] = {}  # runs that write a checkpoint, and since when

    def shorten(self, grace_seconds: float) -> None:
        """Let the grace time end ``grace_seconds`` from now, if that is earlier (a second SIGTERM)."""
        self._ends = min(self._ends, self._clock.monotonic() + grace_seconds)

    def run_once(self) -> bool:
        """Stop what must be stopped by now; whether the drain is over.

        Each round plans anew: a run that outlasted its shorter predecessors is measured by the longer ones.
        """
        now = self._clock.monotonic()
        left = self._ends - now
        active = self._active()
        if not active or left <= -self._cancel_seconds:
            return True
        for run in active:
            if left <= 0:
                self._cancel(run)
            elif run.context is not None and run.context.listens:
                # Told this early at the latest, its checkpoint is stored within the grace time.
                if left <= self._cancel_seconds or self._hopeless(run, now, left):
                    run.context.request_stop()
                    self._told.setdefault(run, now)
                if now - self._told.get(run, now) >= self._cancel_seconds:
                    self._cancel(run)
            elif self._hopeless(run, now, left):
                self._cancel(run)
        return False

    async def run(self, ended: asyncio.Event) -> None:
        """Drain to the end. ``ended`` is set whenever a run ends."""
        while not self.run_once():
            ended.clear()
            with anyio.move_on_after(TICK_SECONDS):
                await ended.wait()

    def _hopeless(self, run: Run, now: float, left: float) -> bool:
        return cannot_finish(run, self._history, now=now, left_seconds=left)

    @staticmethod
    def _cancel(run: Run) -> None:
        if run.reason is None:
            run.stop(StopReason.SHUTDOWN)
