"""How many requests may be under way at once: less when the other side is overrun, slowly more after that."""

from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import anyio


class Throttle:
    """Additive increase, multiplicative decrease (as in RFC 5681), between one and ``ceiling``.

    Each success adds ``1 / limit``, so that a whole round of successes adds one; an overrun halves the limit.
    Requests that were under way when it was halved do not halve it again: they report the same overrun.
    """

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._limit = float(ceiling)
        self._inside = 0
        self._round = 0
        self._waiting: deque[anyio.Event] = deque()

    @property
    def limit(self) -> int:
        """How many may be inside at once, just now."""
        return int(self._limit)

    @asynccontextmanager
    async def slot(self) -> AsyncGenerator[int]:
        """Wait for room and hold it; gives the round, to be handed to ``overrun``."""
        while self._inside >= self.limit:
            turn = anyio.Event()
            self._waiting.append(turn)
            try:
                await turn.wait()
            except BaseException:
                if turn.is_set():  # the turn is another's now
                    self._wake()
                else:
                    self._waiting.remove(turn)
                raise
        self._inside += 1
        try:
            yield self._round
        finally:
            self._inside -= 1
            self._wake()

    def success(self) -> None:
        """A request went through."""
        self._limit = min(float(self._ceiling), self._limit + 1 / self._limit)

    def overrun(self, round: int) -> None:
        """A request that began in ``round`` was refused since the other side has too much to do."""
        if round == self._round:
            self._round += 1
            self._limit = max(1.0, self._limit / 2)

    def _wake(self) -> None:
        for _ in range(min(self.limit - self._inside, len(self._waiting))):
            self._waiting.popleft().set()
