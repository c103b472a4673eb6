"""Deadlines of one run: soft ones ask, hard ones insist.

| handler | soft | hard |
|---|---|---|
| on the loop | cancelled | cancelled again; its slot written off if it swallows that too |
| in a thread | asked (``context.stop_requested``) | cannot be ended: its slot is written off at once |
| in a child | cancelled, which kills the child | the child is killed |
"""

import asyncio
from collections.abc import Callable

from pools.run import Run, StopReason


class Deadlines:
    """Timers of the loop; made only for tasks that have a deadline.

    ``patience_seconds``: how long a handler on the loop may take to end once its hard deadline cancelled it.
    """

    __slots__ = ("_patience_seconds", "_run", "_timers", "_write_off")

    def __init__(
        self,
        run: Run,
        *,
        soft_seconds: float | None,
        hard_seconds: float | None,
        patience_seconds: float,
        write_off: Callable[[Run], None],
    ) -> None:
        self._run = run
        self._patience_seconds = patience_seconds
        self._write_off = write_off
        self._timers: list[asyncio.TimerHandle] = []
        loop = asyncio.get_running_loop()
        if soft_seconds is not None:
            self._timers.append(loop.call_later(soft_seconds, run.stop, StopReason.SOFT_DEADLINE))
        if hard_seconds is not None:
            self._timers.append(loop.call_later(hard_seconds, self._insist))

    def disarm(self) -> None:
        """The handler ended."""
        for timer in self._timers:
            timer.cancel()

    def _insist(self) -> None:
        run = self._run
        run.stop(StopReason.HARD_DEADLINE)
        if run.interruptible:
            loop = asyncio.get_running_loop()
            self._timers.append(loop.call_later(self._patience_seconds, self._write_off, run))
        else:
            self._write_off(run)
