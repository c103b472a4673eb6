"""What both kinds of children do first: hear what they are for, before any event loop runs."""

import os
import socket

from pools.fetch.frames import Framed, FrameError, Unpacker


def first_frame(connection: socket.socket) -> tuple[Framed, Unpacker]:
    """Block until the first frame is here; with the unpacker, which may hold more. Raises FrameError.

    Exits when hive closes the socket: the job was cancelled before it began.
    """
    unpacker = Unpacker()
    while (framed := unpacker.next()) is None:
        data = connection.recv(64 * 1024)
        if not data:
            os._exit(0)
        unpacker.feed(data)
    return framed, unpacker


def expect(framed: Framed, kind: int) -> object:
    """The payload of a frame of this kind. Raises FrameError for any other."""
    if framed[0] != kind:
        raise FrameError(f"hive sent {framed[0].name} first")
    return framed[1]


def quiet_standard_streams() -> None:
    """Nothing to read, and prints go where hive's log goes: never among what hive itself prints."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
