"""The zygote's program: a single-threaded loop that forks children and reports how they ended.

    hive ══ control socket ══ zygote ──fork──▶ spare ─▶ child (own session, dies with the zygote)
      ╚═══════════ the child's own socket, passed through ═══════════╝

It is started before hive knows a secret, with an empty environment, and never imports anything that starts a
thread: a fork of a process with threads copies their locks, held or not. The standard library's fork server
was rejected: it and its children outlive a killed hive, and its start holds hive's loop for up to 0.8 s.

End of the control socket means that hive is gone, whatever killed it: every child's process group is killed,
then every stray that a child left behind, and the zygote ends. It is the subreaper of its children, so
strays that changed their session come here when their parent ends.

Once the parsers are loaded, one child is forked ahead (``spare``); before, a fork costs half a millisecond.
"""

import errno
import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any, Final

from pools.fetch.birth import SHRUGGED_OFF, Birth, decode_packet, encode_packet, read_birth
from pools.fetch.hardening import adopt_orphans, make_undumpable, name_process
from pools.fetch.spare import Spare, receive

LAST_KILL_SECONDS: Final = 1.0
SPARE_AFTER_MS: Final = 30  # of quiet: to fork at once would take the processor from the child just born
OOM_SCORE: Final = 300  # when memory runs out on the host, a child goes before hive does


class ForkLoop:
    """Forks on request, reaps, reports; until hive's end of ``control`` closes."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: dict[int, int | None] = {}  # process id → hive's number for it, None for a spare
        self._spare: Spare | None = None
        self._fork_ahead = False
        self._loaded = False
        self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def run(self) -> None:
        """Serve until hive is gone, then leave nothing behind."""
        signal.set_wakeup_fd(self._wake_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _ignored)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        try:
            while True:
                ready = {
                    descriptor for descriptor, _ in poll.poll(SPARE_AFTER_MS if self._fork_ahead else None)
                }
                if not ready and self._fork_ahead:
                    self._fork_ahead = False
                    with suppress(OSError):  # whoever asks next will hear of it
                        self._spare = self._fork(ahead=True)
                if self._wake_reader in ready:
                    with suppress(BlockingIOError):
                        os.read(self._wake_reader, 4096)
                self._reap()
                if self._control.fileno() in ready and not self._serve():
                    return
        except OSError as error:
            # hive's end broke in the middle of a report: the same as its closing.
            if not isinstance(error, (BrokenPipeError, ConnectionError)):
                raise
        finally:
            self._end_all()

    def _serve(self) -> bool:
        """Do what one packet asks for; False when hive is gone."""
        packet, descriptors = receive(self._control)
        if not packet:
            return False
        message = decode_packet(packet)
        match message["op"]:
            case "ping":
                self._report({"op": "pong", "loaded": self._loaded})
            case "path":
                sys.path[:] = [*sys.path, *(entry for entry in message["path"] if entry not in sys.path)]
            case "spawn":
                self._spawn(int(message["id"]), packet, read_birth(message), descriptors[0])
            case _:
                raise ValueError(f"unknown request {message['op']!r}")
        return True

    def _spawn(self, number: int, packet: bytes, birth: Birth, descriptor: int) -> None:
        if birth.preload and not self._loaded:
            self._load()
        try:
            pid = self._born(packet, descriptor)
        except OSError as error:
            self._report({"op": "refused", "id": number, "error": error.strerror})
            return
        finally:
            os.close(descriptor)
        self._children[pid] = number
        self._report({"op": "spawned", "id": number, "pid": pid})
        self._fork_ahead = self._loaded

    def _born(self, packet: bytes, descriptor: int) -> int:
        """Make the spare, or else a new child, what ``packet`` says; its process id. Raises OSError."""
        spare, self._spare = self._spare, None
        if spare is None or not spare.hand_over(packet, descriptor):
            spare = self._fork(ahead=False)
            if not spare.hand_over(packet, descriptor):
                raise ChildProcessError(errno.ECHILD, "it ended before it began")
        return spare.pid

    def _fork(self, *, ahead: bool) -> Spare:
        spare = Spare.fork((self._control,), ahead=ahead)
        self._children[spare.pid] = None
        return spare

    def _load(self) -> None:
        from pools.fetch.preload import load

        load()
        gc.collect()
        gc.freeze()  # a collection in a child must not write to, and so copy, every shared page
        self._loaded = True

    def _reap(self) -> None:
        """Report the children that ended; each one's group is killed while its zombie pins the number."""
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            if pid in self._children:
                _kill_group(pid)
            _, status, usage = os.wait4(pid, 0)
            number = self._children.pop(pid, None)
            if number is None:
                continue  # a stray, or a spare
            self._kill_strays()
            self._report(
                {
                    "op": "exited",
                    "id": number,
                    "status": status,
                    "peak_bytes": usage.ru_maxrss * 1024,
                    "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
                }
            )

    def _kill_strays(self) -> None:
        """Kill what came to us without being forked here: what ended children left in other sessions."""
        for pid in _descendants():
            if pid not in self._children:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def _end_all(self) -> None:
        """Kill every descendant. Bounded: what cannot be killed in a second hangs in the kernel."""
        deadline = time.monotonic() + LAST_KILL_SECONDS
        while time.monotonic() < deadline:
            for pid in {*self._children, *_descendants()}:
                _kill_group(pid)
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0] != 0:
                    pass
            except ChildProcessError:
                return
            select.select([self._wake_reader], [], [], 0.005)

    def _report(self, message: dict[str, Any]) -> None:
        self._control.send(encode_packet(message))


def _kill_group(pid: int) -> None:
    """Kill the group that ``pid`` leads, if it leads one already. Never our own."""
    if pid > 1:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _descendants() -> list[int]:
    """Our children by the kernel's account; none where it keeps no such list (CONFIG_PROC_CHILDREN)."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            return [int(pid) for pid in listing.read().split()]
    except FileNotFoundError:
        return []


def _ignored(signum: int, frame: object) -> None:
    """SIGCHLD only has to end the poll, the others ask what hive decides. SIG_IGN would outlive an exec."""


def main(descriptor: int) -> None:
    """Run the loop over the socket ``descriptor`` (hive's ``Zygote.start`` passes it)."""
    name_process("hive-zygote")
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write(str(OOM_SCORE))
    make_undumpable()
    adopt_orphans()
    for number in SHRUGGED_OFF:
        signal.signal(number, _ignored)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SHRUGGED_OFF)
    ForkLoop(socket.socket(fileno=descriptor)).run()
