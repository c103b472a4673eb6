"""The connection that all stream scripts of a process share.

Commands go out as they come and answers come back in their order, so nobody waits for a free connection, and
whoever stops waiting leaves his answer to be dropped. Several connections would gain nothing: the server runs
one script at a time.
"""

import asyncio
from collections import deque
from typing import Any

import hiredis
from redis.asyncio import ConnectionPool
from redis.exceptions import ConnectionError as Disconnected

from hive.broker.stream_connection import StreamConnection
from hive.store.redis import RedisStore

Argument = bytes | str | int


class StreamLink:
    """Sends commands that may be repeated. It closes with the store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._opening = asyncio.Lock()
        self._line: _Line | None = None

    async def call(self, command: tuple[Argument, ...]) -> Any:
        """The answer to ``command``, within the store's deadline.

        A connection that was closed is noticed by its use at the latest; then it is tried on a fresh one.
        """
        packed = hiredis.pack_command(command)  # pyright: ignore[reportArgumentType]
        deadline = asyncio.get_running_loop().time() + self._store.call_seconds
        line = self._line
        if line is not None and not line.connection.closed:
            try:
                return await line.ask(packed)  # it keeps the deadline itself
            except Disconnected:
                pass
        async with asyncio.timeout_at(deadline):
            try:
                return await (await self._opened()).ask(packed)
            except Disconnected:
                return await (await self._opened()).ask(packed)

    async def _opened(self) -> "_Line":
        async with self._opening:
            line = self._line
            if line is None or line.connection.closed:
                if line is not None:
                    await line.connection.close()
                self._refuse_closed()
                self._line = line = _Line(self._store.kept.connection_pool, self._store.call_seconds)
                await line.connection.open()
                if self._store.closed:
                    await line.connection.close()
                    self._refuse_closed()
            return line

    def _refuse_closed(self) -> None:
        """A connection that is opened from a closed pool would never be closed."""
        if self._store.closed:
            raise Disconnected("the store is closed")


class _Line:
    """One connection and those who wait for its answers, in the order of their commands."""

    def __init__(self, pool: ConnectionPool, seconds: float) -> None:
        self.connection = StreamConnection(pool, answered=self._answered, lost=self._lost)
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._watch: asyncio.TimerHandle | None = None

    def ask(self, packed: bytes) -> asyncio.Future[Any]:
        """The answer to come; Disconnected when the connection ends before, TimeoutError when it is late."""
        future = self._loop.create_future()
        self._waiting.append((future, self._loop.time() + self._seconds))
        self.connection.send(packed)
        if self._watch is None:
            self._watch = self._loop.call_later(self._seconds, self._look)
        return future

    def _answered(self, answer: Any) -> None:
        future, _ = self._waiting.popleft()
        if future.done():
            return  # nobody waits for it any more
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _look(self) -> None:
        """One timer for all: a deadline for each call would cost more than the call."""
        self._watch = None
        if self._waiting:
            left = self._waiting[0][1] - self._loop.time()
            if left > 0:
                self._watch = self._loop.call_later(left, self._look)
            else:
                self.connection.abort(TimeoutError("no answer in time"))

    def _lost(self, cause: Exception) -> None:
        while self._waiting:
            future, _ = self._waiting.popleft()
            if not future.done():
                future.set_exception(type(cause)(*cause.args))
