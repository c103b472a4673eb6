"""A child before anyone asks for one: forked ahead, so that whoever asks does not wait for the fork.

    fork ─▶ own session, dies with the zygote ─▶ rehearses ─▶ waits on its wire
                                    hand_over: its birth and its socket ─▶ the role's ``main`` ─▶ exit

To fork a zygote that has loaded the parsers takes 2.5 ms, and a child's first steps take twice as long as
later ones, since each page is copied when it is first written to. Both are over when a spare is asked for.
"""

import importlib
import os
import signal
import socket
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, NoReturn, Self

from pools.fetch.birth import MAX_PACKET_BYTES, ROLES, Birth, decode_packet, read_birth
from pools.fetch.hardening import die_with_parent, limit_memory, name_process

SPARE_NAME: Final = "hive-spare"
_CONNECTION: Final = 3  # the one descriptor of a child beside the standard streams


class Spare:
    """The zygote's handle on a child that waits for what it shall be."""

    def __init__(self, pid: int, wire: socket.socket) -> None:
        self.pid = pid
        self._wire = wire

    @classmethod
    def fork(cls, inherited: Iterable[socket.socket], *, ahead: bool) -> Self:
        """Fork one, which lets go of the zygote's own sockets, ``inherited``. Raises OSError.

        ``ahead``: nobody waits for it, so it has time to rehearse.
        """
        zygote = os.getpid()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                pid = os.fork()
            except OSError:
                ours.close()
                raise
            if pid == 0:
                for held in (*inherited, ours):
                    held.detach()  # or a finaliser closes a number that stands for another one by then
                _live(zygote, theirs.detach(), ahead=ahead)
        return cls(pid, ours)

    def hand_over(self, packet: bytes, descriptor: int) -> bool:
        """Tell it its birth and give it its socket; False when it has ended before that."""
        with self._wire:
            try:
                socket.send_fds(self._wire, [packet], [descriptor])
            except OSError:
                return False
        return True


def receive(channel: socket.socket) -> tuple[bytes, list[int]]:
    """A packet and the descriptors that came with it; no bytes when the other end is closed."""
    packet, ancillary, _, _ = channel.recvmsg(MAX_PACKET_BYTES, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
    return packet, [
        int.from_bytes(data[:4], sys.byteorder)
        for level, kind, data in ancillary
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    ]


def _live(zygote: int, wire: int, *, ahead: bool) -> NoReturn:
    """A child's life: shed what was the zygote's, wait, do the one thing, exit without clean-up."""
    status = 70
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        die_with_parent(zygote)
        os.dup2(wire, _CONNECTION, inheritable=False)
        os.closerange(_CONNECTION + 1, 65536)
        if ahead:
            _rehearse()
            name_process(SPARE_NAME)
        birth, connection = _asked()
        limit_memory(birth.max_data_bytes)
        name_process(f"hive-{birth.role}")
        status = importlib.import_module(ROLES[birth.role]).main(connection, birth, zygote)
    except MemoryError:
        status = 77  # exits.OUT_OF_MEMORY_STATUS, without what it imports
    except BaseException:  # noqa: BLE001 - a process's boundary: nothing returns into the loop
        import traceback

        traceback.print_exc()
    finally:
        os._exit(status)


def _rehearse() -> None:
    """Go through a fetch child's first steps. If that fails, the crawl to come may say why."""
    with suppress(Exception):
        importlib.import_module(ROLES["fetch"]).rehearse()


def _asked() -> tuple[Birth, socket.socket]:
    """Wait for the birth and the socket, which takes the wire's number. Exits when there will be none."""
    with socket.socket(fileno=_CONNECTION) as wire:
        packet, descriptors = receive(wire)
        if not packet:
            os._exit(0)
    (descriptor,) = descriptors
    os.dup2(descriptor, _CONNECTION, inheritable=False)
    os.close(descriptor)
    return read_birth(decode_packet(packet)), socket.socket(fileno=_CONNECTION)
