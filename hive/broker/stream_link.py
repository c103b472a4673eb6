"""Connections that the stream scripts keep in hand.

Borrowing one from redis-py's pool for each call, with its checks and locks, takes longer than the answer of
an idle server; and its own packing, in Python, takes a third of a big publish's time.
"""

import asyncio
from typing import Any, Final

import hiredis
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ResponseError

from hive.store.redis import RedisStore

Argument = bytes | str | int

KEPT: Final = 4  # of the pool's connections; more calls at once borrow and give back


class StreamLink:
    """Sends commands that may be repeated. What is kept is closed with the store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._kept: list[tuple[Any, float | None]] = []

    async def call(self, command: tuple[Argument, ...]) -> Any:
        """The answer to ``command``, within the store's deadline.

        A connection that was closed while it lay here is noticed by its use; then it is tried on a fresh one.
        Cancelling the call closes its connection, so that nobody reads an answer that is not his.
        """
        packed = hiredis.pack_command(command)  # pyright: ignore[reportArgumentType]
        if self._kept:
            try:
                return await self._ask(*self._kept.pop(), packed)
            except Disconnected:
                pass
        connection: Any = await self._store.client.connection_pool.get_connection()
        return await self._ask(connection, connection.socket_timeout, packed)

    async def _ask(self, connection: Any, seconds: float | None, packed: bytes) -> Any:
        # Its own deadline makes a task for each write; one around both does not.
        connection.socket_timeout = None
        usable = False
        try:
            async with asyncio.timeout(seconds):
                await connection.send_packed_command(packed, check_health=False)
                answer = await connection.read_response()
            usable = True
            return answer
        except ResponseError:
            usable = True
            raise
        finally:
            if usable and len(self._kept) < KEPT:
                self._kept.append((connection, seconds))
            else:
                if not usable:
                    await connection.disconnect(nowait=True)
                connection.socket_timeout = seconds
                await self._store.client.connection_pool.release(connection)
