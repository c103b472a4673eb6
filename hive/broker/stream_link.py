"""Connections that the stream scripts keep in hand.

Borrowing one from redis-py's pool for each call, with its checks and locks, takes longer than the answer of
an idle server; and its own packing, in Python, takes a third of a big publish's time.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import hiredis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ResponseError

from hive.store.redis import RedisStore

Argument = bytes | str | int

KEPT: Final = 3  # of the pool's connections; more calls at once borrow and give back
IDLE_SECONDS: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Kept:
    """A connection in hand, and when it was last used, on the loop."""

    connection: Any
    used_at: float


class StreamLink:
    """Sends commands that may be repeated. ``run`` gives back what is kept, or the store closes it."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._kept: list[_Kept] = []
        self._holds = asyncio.Event()

    async def call(self, command: tuple[Argument, ...]) -> Any:
        """The answer to ``command``, within the store's deadline.

        A connection that was closed while it lay here is noticed by its use; then it is tried on a fresh one.
        Cancelling the call closes its connection, so that nobody reads an answer that is not his.
        """
        packed = hiredis.pack_command(command)  # pyright: ignore[reportArgumentType]
        async with asyncio.timeout(self._store.call_seconds):
            if self._kept:
                try:
                    return await self._ask(self._kept.pop().connection, packed)
                except Disconnected:
                    pass
            connection: Any = await self._store.client.connection_pool.get_connection()
            return await self._ask(connection, packed)

    async def _ask(self, connection: Any, packed: bytes) -> Any:
        usable = False
        try:
            await connection.send_packed_command(packed, check_health=False)
            answer = await connection.read_response()
            usable = True
            return answer
        except ResponseError:
            usable = True
            raise
        finally:
            if usable and len(self._kept) < KEPT:
                self._kept.append(_Kept(connection, asyncio.get_running_loop().time()))
                self._holds.set()
            else:
                if not usable:
                    await connection.disconnect(nowait=True)
                await self._release(connection)

    async def run_once(self) -> None:
        """Give back what was not used for a while."""
        idle = asyncio.get_running_loop().time() - IDLE_SECONDS
        for kept in [each for each in self._kept if each.used_at <= idle]:
            self._kept.remove(kept)
            await self._release(kept.connection)

    async def run(self) -> None:
        """Give back what is not used, until cancelled; then everything."""
        try:
            while True:
                self._holds.clear()
                if not self._kept:
                    await self._holds.wait()
                await asyncio.sleep(IDLE_SECONDS)
                await self.run_once()
        finally:
            while self._kept:
                kept = self._kept.pop()
                await self._release(kept.connection)

    async def _release(self, connection: Any) -> None:
        await self._store.client.connection_pool.release(connection)
