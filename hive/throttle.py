"""How many calls may be under way at once: less when the other side is overrun, slowly more after that."""

import asyncio
from collections import deque
from contextlib import suppress
from math import inf
from typing import Final, NamedTuple

from hive.backoff import Backoff
from hive.clock import Clock

LONGEST_SECONDS: Final = 3600.0
"""A gate is not closed for longer, whatever was asked for: then one call asks anew."""
UNSAID: Final = Backoff(first_seconds=1.0, max_seconds=60.0)
"""How long the gate is closed where the other side names no time, by its refused rounds in a row."""


class _Turn(NamedTuple):
    """One who waits. ``admitted``: false when he is sent away, since the gate stays closed for too long."""

    admitted: asyncio.Future[bool]
    gate_seconds: float


class Throttle:
    """Additive increase, multiplicative decrease (as in RFC 5681), between one and ``ceiling``; and a gate.

    Each success adds ``1 / limit``, so that a whole round of successes adds one; an overrun halves the limit.
    Calls that were under way when it was halved do not halve it again: they report the same overrun.
    Each overrun closes the gate, and while it is closed nobody enters. Whoever waits enters in turn, and
    nobody passes him.
    """

    def __init__(self, ceiling: int, clock: Clock) -> None:
        self._ceiling = ceiling
        self._clock = clock
        self._limit = float(ceiling)
        self._round = 0
        self._refused_rounds = 0  # since a call went through
        self._opens_at = 0.0
        self._turns: deque[_Turn] = deque()
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

    async def enter(self, gate_seconds: float = inf) -> int | None:
        """Wait for one's turn, and be inside until ``leave``; gives the round, to be handed to ``overrun``.

        None as soon as it is known that the gate stays closed for more than ``gate_seconds``: then nobody is
        inside. Cancelling the wait leaves nothing behind.
        """
        if self.closed_seconds > gate_seconds:
            return None
        turn = _Turn(asyncio.get_running_loop().create_future(), gate_seconds)
        self._turns.append(turn)
        self.admit()
        admitted = turn.admitted
        try:
            if not admitted.done():
                await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                if admitted.result():
                    self.leave()  # admitted in the same turn of the loop in which we were cancelled
            else:
                with suppress(ValueError):
                    self._turns.remove(turn)
            raise
        return self._round if admitted.result() else None

    def leave(self) -> None:
        """End what ``enter`` began."""
        self.inside -= 1
        self.admit()

    def success(self) -> None:
        """A call went through."""
        self._refused_rounds = 0
        self._limit = min(float(self._ceiling), self._limit + 1 / self._limit)

    def overrun(self, round: int, retry_after_seconds: float | None = None) -> bool:
        """A call that began in ``round`` was refused since the other side has too much to do.

        ``retry_after_seconds``: for how long nobody shall come; if the other side does not say, for longer
        with each round that is refused. Returns whether this halved the limit.
        """
        is_first = round == self._round
        if is_first:
            self._round += 1
            self._refused_rounds += 1
            self._limit = max(1.0, self._limit / 2)
            if not retry_after_seconds:
                retry_after_seconds = UNSAID.delay(self._refused_rounds)
        if retry_after_seconds:
            closed = min(retry_after_seconds, LONGEST_SECONDS)
            self._opens_at = max(self._opens_at, self._clock.monotonic() + closed)
            self._send_away()
        return is_first

    def admit(self) -> None:
        """Let in those whose turn it is. Called when somebody comes or leaves, and as the gate opens."""
        closed = self.closed_seconds
        if closed > 0:
            if self._turns and self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(closed, self._opened)
            return
        while self._turns and self.inside < self.limit:
            turn = self._turns.popleft().admitted
            if not turn.done():
                self.inside += 1
                turn.set_result(True)

    def _send_away(self) -> None:
        """Refuse those who wait and do not want to wait for so long."""
        closed = self.closed_seconds
        staying: deque[_Turn] = deque()
        for turn in self._turns:
            if turn.gate_seconds >= closed:
                staying.append(turn)
            elif not turn.admitted.done():
                turn.admitted.set_result(False)
        self._turns = staying

    def _opened(self) -> None:
        self._timer = None
        self.admit()
