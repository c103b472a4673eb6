"""A connection to Redis without what redis-py puts around each call.

Between the bytes and whoever waits for an answer lie a stream reader, a task that wakes, a parser that awaits
and a deadline of its own. After a pause, when nothing of it is in the processor's caches, that takes longer
than the server. Here an answer is parsed in the turn of the loop in which its bytes come. redis-py still
connects: it knows addresses, passwords and TLS.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final, cast

import hiredis
from redis.asyncio import ConnectionPool
from redis.asyncio.connection import DefaultParser
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import RedisError

_INCOMPLETE: Final = object()
BUFFER_BYTES: Final = 64 * 1024


class StreamConnection(asyncio.BufferedProtocol):
    """A connection of ``pool``. ``answered`` is called with each answer, errors included, in their order;
    ``lost`` once, at the end, with the cause. Both on the loop, and they must not raise."""

    def __init__(
        self, pool: ConnectionPool, *, answered: Callable[[Any], None], lost: Callable[[Exception], None]
    ) -> None:
        self.closed = True
        self._pool = pool
        self._answered = answered
        self._lost = lost
        self._reader = hiredis.Reader(
            replyError=cast("Any", DefaultParser.parse_error), notEnoughData=_INCOMPLETE
        )
        self._buffer = bytearray(BUFFER_BYTES)
        self._room = memoryview(self._buffer)  # under TLS asyncio fills a slice of it: of a bytearray, a copy
        self._connection: Any = None
        self._transport: Any = None
        self._former: Any = None

    async def open(self) -> None:
        """Connect. To be awaited once, within a deadline; raises redis-py's errors."""
        self._connection = await self._pool.get_connection()
        self._transport = self._connection._writer.transport
        self._former = self._transport.get_protocol()
        self._transport.set_protocol(self)
        self.closed = False

    def send(self, packed: bytes) -> None:
        """Send commands. What is sent into a closed connection has no answer but ``lost``."""
        self._transport.write(packed)

    def get_buffer(self, sizehint: int) -> memoryview:
        """One for all that comes: otherwise asyncio takes 256 KiB from the system for each answer."""
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._reader.feed(self._buffer, 0, nbytes)  # pyright: ignore[reportArgumentType]
            while (answer := self._reader.gets()) is not _INCOMPLETE:
                if type(answer) is not hiredis.PushNotification:
                    self._answered(answer)
        except (RedisError, hiredis.HiredisError) as error:
            self.abort(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._former.connection_lost(exc)  # redis-py waits for it when the pool is closed
        self._end(Disconnected(str(exc or "closed by the server")))

    def abort(self, cause: Exception) -> None:
        """Close at once, because of ``cause``."""
        if self._transport is not None:
            self._transport.abort()
        self._end(cause)

    async def close(self) -> None:
        """Close, and give the place in the pool back."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self.abort(Disconnected("closed"))
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)

    def _end(self, cause: Exception) -> None:
        if not self.closed:
            self.closed = True
            self._lost(cause)
