"""The child's end of its socket, once its event loop runs: frames out, answers and the wish to stop in."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from hive.ingest.cleaning import clean
from hive.ingest.fetching import Question
from pools.fetch.coding import frames_of
from pools.fetch.frames import Json, Kind, Unpacker


class Channel:
    """Speaks with hive. When hive's end closes, the child ends at once, with its process group."""

    def __init__(self, connection: socket.socket, unpacker: Unpacker) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._unpacker = unpacker
        self._loop = asyncio.get_running_loop()
        self._sending = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._answer: asyncio.Future[Json] | None = None
        self.stopping = False
        self.on_stop: Callable[[], None] | None = None

    def open(self) -> None:
        """Start to listen."""
        self._loop.add_reader(self._connection, self._read)
        self._loop.add_signal_handler(signal.SIGTERM, self._stop)
        self._take()

    @property
    def sending(self) -> bool:
        """Whether a frame may be half written: no time to be cancelled."""
        return self._sending.locked()

    async def send(self, *frames: bytes) -> None:
        """Write whole frames. Waits while hive does not read: that is the back-pressure."""
        async with self._sending:
            for frame in frames:
                await self._loop.sock_sendall(self._connection, frame)

    async def known(self, source_ids: Sequence[str]) -> Mapping[str, Mapping[str, Json]]:
        """What is stored for these documents: a connector's ``Known``. Ids come back as it spelt them."""
        spelt = {clean(source_id): source_id for source_id in source_ids}
        if not spelt:
            return {}
        async with self._asking:
            self._answer = self._loop.create_future()
            await self.send(*frames_of(Question(source_ids=tuple(spelt))))
            stored = cast(Mapping[str, Mapping[str, Json]], await self._answer)
        return {spelt[source_id]: state for source_id, state in stored.items() if source_id in spelt}

    def _read(self) -> None:
        try:
            data = self._connection.recv(256 * 1024)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            os.killpg(0, signal.SIGKILL)  # nobody is left to work for
        self._unpacker.feed(data)
        self._take()

    def _take(self) -> None:
        while (framed := self._unpacker.next()) is not None:
            kind, payload = framed
            if kind is Kind.STOP:
                self._stop()
            elif kind is Kind.ANSWER and self._answer is not None and not self._answer.done():
                self._answer.set_result(payload)

    def _stop(self) -> None:
        self.stopping = True
        if self.on_stop is not None:
            self.on_stop()
