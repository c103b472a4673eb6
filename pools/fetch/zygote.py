"""hive's handle on its zygote: starts it, sends it packets, reads its reports, ends it.

``Zygote.start()`` belongs at the very beginning of hive, before settings are read: what the zygote does not
have cannot leak from it.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Self

import pools
from pools.fetch.birth import MAX_PACKET_BYTES, SHRUGGED_OFF, decode_packet, encode_packet

# All that children know of hive's environment: where libraries and certificates stand, and the time zone.
_INHERITED: Final = ("LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ")

_PROGRAM: Final = "; ".join(
    (
        "import sys",
        "sys.path.insert(0, sys.argv[2])",
        "from pools.fetch.fork_loop import main",
        "main(int(sys.argv[1]))",
    )
)


class ZygoteGone(Exception):
    """The zygote's end of the control socket is closed: it has ended."""


class Zygote:
    """One zygote process. Not restartable itself: whoever owns it starts another."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process = process
        self._control = control

    @classmethod
    def start(cls) -> Self:
        """Start one (about 1 ms of the caller's time; it is ready some 30 ms later, packets wait meanwhile).

        It gets no environment but the names in ``_INHERITED``, no descriptor but its socket, standard error
        and standard output, and a session of its own, so that a terminal's Ctrl-C reaches hive alone. Raises
        OSError.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Signals that a zygote ignores are blocked over its birth, until it has handlers that ignore them.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SHRUGGED_OFF)
        with theirs:
            try:
                process = subprocess.Popen(
                    [
                        *(sys.executable, "-I", "-c", _PROGRAM),
                        *(str(theirs.fileno()), str(Path(pools.__file__).parents[1])),
                    ],
                    env={name: os.environ[name] for name in _INHERITED if name in os.environ},
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        ours.setblocking(False)
        zygote = cls(process, ours)
        zygote.send({"op": "path", "path": [entry for entry in sys.path if entry]})
        return zygote

    @property
    def pid(self) -> int:
        return self._process.pid

    def fileno(self) -> int:
        """The control socket, for the event loop to watch."""
        return self._control.fileno()

    def send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        """Send one packet, with a descriptor for a child.

        Raises ZygoteGone, and BlockingIOError while the zygote is so far behind that its socket is full.
        """
        packet = encode_packet(message)
        try:
            if descriptor is None:
                self._control.send(packet)
            else:
                socket.send_fds(self._control, [packet], [descriptor])
        except BlockingIOError:
            raise
        except OSError as error:
            raise ZygoteGone(str(error)) from error

    def reports(self) -> Iterator[dict[str, Any]]:
        """What has arrived. Raises ZygoteGone after the last report."""
        while True:
            try:
                packet = self._control.recv(MAX_PACKET_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                raise ZygoteGone(str(error)) from error
            if not packet:
                raise ZygoteGone("the zygote has ended")
            yield decode_packet(packet)

    def end(self) -> bool:
        """Close its socket, so that it kills its children and ends. Whether it had ended already."""
        self._control.close()
        return self.ended

    def kill(self) -> None:
        """SIGKILL. Its children die with it; their own descendants are left to whoever knows the groups."""
        self._process.kill()

    @property
    def ended(self) -> bool:
        """Whether it has ended; reaps it."""
        return self._process.poll() is not None

    def wait(self, seconds: float) -> bool:
        """Block until it has ended, at most that long (for an exit path without an event loop)."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self, seconds: float = 2.0) -> None:
        """End it, by force after ``seconds``. Blocks for as long; normally a few milliseconds."""
        self.end()
        if not self.wait(seconds):
            self.kill()
            self.wait(seconds)
