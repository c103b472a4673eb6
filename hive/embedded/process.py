"""One server process: started, waited for without a thread, ended step by step."""

import os
import signal
import subprocess
from asyncio import Event, get_running_loop
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import anyio

# Nothing of hive's environment: it holds DSNs and keys. English messages, for they are quoted and looked at.
ENVIRONMENT: Mapping[str, str] = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}
_LOG_BYTES = 4 * 1024 * 1024
_TAIL_BYTES = 4096


class ServerProcess:
    """A child that lives as long as the thread that started it at the most: PDEATHSIG follows the thread."""

    def __init__(self, process: subprocess.Popen[bytes], log_path: Path, log_start: int) -> None:
        self._process = process
        self._log_path = log_path
        self._log_start = log_start

    @classmethod
    def start(
        cls, command: Sequence[str], *, cwd: Path, log_path: Path, stdin: bytes = b""
    ) -> "ServerProcess":
        """Start ``command``; output goes to ``log_path``, input is ``stdin`` (below a pipe's 64 KiB)."""
        if log_path.exists() and log_path.stat().st_size > _LOG_BYTES:
            log_path.replace(log_path.with_suffix(".log.old"))
        descriptor = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "ab") as output:
            start = output.tell()
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=dict(ENVIRONMENT),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                # Ctrl-C on a terminal reaches a whole process group: it must not stop the stores under hive.
                start_new_session=True,
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it ended at once; whoever waits for it finds out why
            process.stdin.write(stdin)
            process.stdin.close()
        return cls(process, log_path, start)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def exit(self) -> str:
        """How it ended, in words."""
        code = self._process.poll()
        if code is None:
            return "still running"
        return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"

    def log_tail(self) -> str:
        """The end of what it printed since it was started."""
        try:
            with self._log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self._log_start, size - _TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip()
        except OSError:
            return ""

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        self._process.send_signal(number)

    async def wait(self) -> None:
        """Return once it has ended. May be cancelled, and waited for again."""
        if self.ended:
            return
        # A pidfd instead of asyncio's child watcher: no thread for each child, and nobody who reaps all
        # children as PID 1 can make it miss the end.
        descriptor = os.pidfd_open(self._process.pid)
        try:
            over = Event()
            loop = get_running_loop()
            loop.add_reader(descriptor, over.set)
            try:
                await over.wait()
            finally:
                loop.remove_reader(descriptor)
        finally:
            os.close(descriptor)
        self._process.wait()

    async def stop(self, steps: Sequence[tuple[signal.Signals, float]]) -> None:
        """Send each signal in turn, waiting so many seconds after each, until it has ended. Shielded."""
        with anyio.CancelScope(shield=True):
            for number, seconds in steps:
                if self.ended:
                    return
                self.send(number)
                with anyio.move_on_after(seconds):
                    await self.wait()
