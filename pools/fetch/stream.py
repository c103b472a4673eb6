"""A child's frames on hive's side: back-pressure by not reading, and a clock that runs only while hive reads.

The socket is read only while someone waits for a frame, so an unread child fills it (some 200 KB) and stops.
Nothing is lost when a wait is cancelled: what has arrived stays in the unpacker. asyncio's transports were
tried and left: one that fails to write (a late STOP to a child that has just ended) throws away what it has
not read.
"""

import asyncio
import socket
from typing import Final

from pools.fetch.frames import Framed, Unpacker

READ_BYTES: Final = 256 * 1024


class Stalled(Exception):
    """No frame came within the time allowed."""


class FrameStream:
    """Frames in, frames out, over one non-blocking socket, which it owns."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unpacker = Unpacker()
        self._ended = False
        self._silent_seconds = 0.0  # while being read, since the last frame
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    async def next(self, stall_seconds: float | None) -> Framed | None:
        """The next frame, or None at the stream's end (also when the last frame was cut off).

        ``stall_seconds``: how long the other side may be silent while being read, over all calls since its
        last frame. Raises Stalled, FrameError. A frame is decoded per turn of the loop, never two.
        """
        await asyncio.sleep(0)
        while (framed := self._unpacker.next()) is None:
            if self._ended:
                return None
            self._read()
            if self._ended:
                continue
            if (framed := self._unpacker.next()) is not None:
                break
            await self._readable(stall_seconds)
        self._silent_seconds = 0.0
        return framed

    async def send(self, data: bytes) -> None:
        """Write ``data`` to its end. A child that is gone is no error here: ``next`` tells."""
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        while view:
            sent = self._write(view)
            if sent is None:
                return
            view = view[sent:]
            if view:
                self._writer = loop.create_future()
                loop.add_writer(self._connection, _resolve, self._writer)
                try:
                    await self._writer
                finally:
                    self._writer = None
                    if self._connection.fileno() >= 0:
                        loop.remove_writer(self._connection)

    def post(self, data: bytes) -> None:
        """Write ``data``, small, without waiting; dropped if the child is gone or does not read at all."""
        self._write(memoryview(data))

    def close(self) -> None:
        """Close the socket at once. Whoever still waits in ``next`` or ``send`` finds the stream's end."""
        self._ended = True
        if self._connection.fileno() >= 0:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._connection)
            loop.remove_writer(self._connection)
            self._connection.close()
        for waiter in (self._reader, self._writer):
            if waiter is not None:
                _resolve(waiter)

    def _read(self) -> None:
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:  # reset: the child ended with something of ours unread
            self._ended = True
            return
        if data:
            self._unpacker.feed(data)
        else:
            self._ended = True

    def _write(self, data: memoryview) -> int | None:
        """How many bytes the socket took; None when the child is gone."""
        try:
            return self._connection.send(data, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return 0
        except OSError:
            return None

    async def _readable(self, stall_seconds: float | None) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        left = None if stall_seconds is None else max(0.0, stall_seconds - self._silent_seconds)
        self._reader = loop.create_future()
        loop.add_reader(self._connection, _resolve, self._reader)
        try:
            async with asyncio.timeout(left):
                await self._reader
        except TimeoutError:
            raise Stalled from None
        finally:
            self._reader = None
            if self._connection.fileno() >= 0:
                loop.remove_reader(self._connection)
            self._silent_seconds += loop.time() - began


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
