"""How many calls may be under way at once: less when the other side is overrun, slowly more after that."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from hive.clock import Clock

LONGEST_SECONDS: Final = 3600.0
"""A gate is not closed for longer, whatever was asked for: then one call asks anew."""


class Throttle:
    """Additive increase, multiplicative decrease (as in RFC 5681), between one and ``ceiling``; and a gate.

    Each success adds ``1 / limit``, so that a whole round of successes adds one; an overrun halves the limit.
    Calls that were under way when it was halved do not halve it again: they report the same overrun.
    While the gate is closed nobody enters. Whoever waits enters in turn, and nobody passes him.
    """

    def __init__(self, ceiling: int, clock: Clock) -> None:
        self._ceiling = ceiling
        self._clock = clock
        self._limit = float(ceiling)
        self._round = 0
        self._opens_at = 0.0
        self._turns: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self.inside = 0

    @property
    def limit(self) -> int:
        """How many may be inside at once, just now."""
        return int(self._limit)

    @property
    def waiting(self) -> int:
        """How many wait for their turn."""
        return len(self._turns)

    @property
    def closed_seconds(self) -> float:
        """How long the gate stays closed; 0 when it is open."""
        return max(0.0, self._opens_at - self._clock.monotonic())

    async def enter(self) -> int:
        """Wait for one's turn, and be inside until ``leave``; gives the round, to be handed to ``overrun``.

        Cancelling the wait leaves nothing behind.
        """
        turn = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self.admit()
        try:
            if not turn.done():
                await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave()  # admitted in the same turn of the loop in which we were cancelled
            else:
                with suppress(ValueError):
                    self._turns.remove(turn)
            raise
        return self._round

    def leave(self) -> None:
        """End what ``enter`` began."""
        self.inside -= 1
        self.admit()

    def success(self) -> None:
        """A call went through."""
        self._limit = min(float(self._ceiling), self._limit + 1 / self._limit)

    def overrun(self, round: int, retry_after_seconds: float | None = None) -> bool:
        """A call that began in ``round`` was refused since the other side has too much to do.

        ``retry_after_seconds``: for how long nobody shall come. Returns whether this halved the limit.
        """
        if retry_after_seconds is not None:
            closed = min(retry_after_seconds, LONGEST_SECONDS)
            self._opens_at = max(self._opens_at, self._clock.monotonic() + closed)
        if round != self._round:
            return False
        self._round += 1
        self._limit = max(1.0, self._limit / 2)
        return True

    def admit(self) -> None:
        """Let in those whose turn it is. Called when somebody comes or leaves, and as the gate opens."""
        closed = self.closed_seconds
        if closed > 0:
            if self._turns and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(closed, self._opened)
            return
        while self._turns and self.inside < self.limit:
            turn = self._turns.popleft()
            if not turn.done():
                self.inside += 1
                turn.set_result(None)

    def _opened(self) -> None:
        self._timer = None
        self.admit()
