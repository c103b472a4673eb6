"""A pool of connections that grows by one at a time: who else needs one waits a moment for a return.

At a start a dozen services and pools ask for their first connection in the same moment. Sixteen sessions made
at once keep Postgres busy for 60 ms, and each of them reads the catalogue and plans for itself; two or three
do what they were wanted for in a tenth of that, and the others cost Postgres no memory. The wait is short, so
that a connection that cannot be made holds nobody up.
"""

import asyncio
from bisect import insort
from itertools import count
from operator import itemgetter
from typing import Any, Final

import anyio
import asyncpg

RETURN_SECONDS: Final = 0.02
"""How long one that is in use is waited for, where nobody makes another."""
TURN_SECONDS: Final = 0.1
"""How long one that somebody else makes is waited for."""


class GrowingPool:
    """Borrows from ``pool``, and returns to it. Whoever finds a free connection takes it at once."""

    def __init__(self, pool: asyncpg.Pool) -> None:
        """``lost`` is to be a termination listener of each connection that ``pool`` makes."""
        self.pool = pool
        self._making = 0
        self._lent = 0
        # At least so many are there: to ask the pool takes longer than to borrow from it.
        self._known = 0
        self._tickets = count()
        # Who waits, by the order of asking: one that looked in vain keeps its place.
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []

    async def acquire(self, *, timeout_seconds: float) -> Any:
        """As the pool's own ``acquire``; raises what that raises."""
        making = self._lent >= self._known and not self.pool.get_idle_size()
        if making and (self._making or self._lent):
            await self._wait()
            making = not self.pool.get_idle_size()
        self._making += making
        try:
            connection = await self.pool.acquire(timeout=timeout_seconds)
        finally:
            self._making -= making
            self._call_next()
        self._lent += 1
        self._known = max(self._known, self._lent)
        return connection

    async def release(self, connection: Any, *, timeout_seconds: float) -> None:
        """As the pool's own ``release``; raises what that raises."""
        self._lent -= 1
        try:
            await self.pool.release(connection, timeout=timeout_seconds)
        finally:
            self._call_next()

    def lost(self, connection: Any) -> None:
        """A connection has ended, lent or idle, whoever ended it."""
        del connection
        self._known -= 1

    async def _wait(self) -> None:
        ticket = next(self._tickets)
        with anyio.move_on_after(RETURN_SECONDS):
            while not self.pool.get_idle_size():
                await self._turn(ticket)
        with anyio.move_on_after(TURN_SECONDS):
            while self._making and not self.pool.get_idle_size():
                await self._turn(ticket)

    async def _turn(self, ticket: int) -> None:
        place = ticket, asyncio.get_running_loop().create_future()
        insort(self._waiting, place, key=itemgetter(0))
        try:
            await place[1]
        finally:
            if place in self._waiting:
                self._waiting.remove(place)

    def _call_next(self) -> None:
        """Have the one who waits longest look again."""
        while self._waiting:
            _, turn = self._waiting.pop(0)
            if not turn.done():
                turn.set_result(None)
                return
