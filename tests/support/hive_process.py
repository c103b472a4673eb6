"""A real hive, driven from outside: by its command line, its HTTP interface and signals."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hive.embedded.folder import StoreFolder

HIVE = Path(sys.executable).parent / "hive"
CRADLE = Path(__file__).with_name("cradle.py")
START_SECONDS = 90.0


def until(condition: Callable[[], Any], seconds: float, what: str) -> Any:
    """Poll ``condition`` until it gives something true; fails naming ``what`` after ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.05)


class HiveProcess:
    """One hive on one state folder. ``start`` may be called again after it has ended."""

    def __init__(
        self, state: Path, environment: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.state = state
        self.cwd = cwd or state.parent
        self.log_path = state.parent / f"{state.name}.log"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HIVE_")}
        self.environment = {
            **inherited,
            "HIVE_STATE_DIR": str(state),
            "HIVE_HTTP__PORT": "0",
            **(environment or {}),
        }
        self._cradle: subprocess.Popen[bytes] | None = None
        self._status = state.parent / f"{state.name}.status"

    def start(self, *arguments: str, ready: bool = True) -> float:
        """Start ``hive run``; with ``ready``, wait for /readyz. Returns the seconds that took."""
        assert self._cradle is None, "already running"
        self._status.unlink(missing_ok=True)
        (self.state / "http.json").unlink(missing_ok=True)
        begun = time.monotonic()
        self.state.parent.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._cradle = subprocess.Popen(
                [sys.executable, "-I", str(CRADLE), str(self._status), str(HIVE), "run", *arguments],
                env=self.environment,
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        if ready:
            self.wait_ready()
        return time.monotonic() - begun

    def wait_ready(self, seconds: float = START_SECONDS) -> None:
        """Wait until /readyz answers 200."""

        def ready() -> bool:
            exited = self.exit_code()
            assert exited is None, f"hive ended with {exited} before it was ready:\n{self.log_tail()}"
            return self.status_of("/readyz") == 200

        try:
            until(ready, seconds, "hive ready")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_tail()}") from None

    def _lines(self) -> list[dict[str, int]]:
        try:
            return [json.loads(line) for line in self._status.read_text().splitlines()]
        except FileNotFoundError:
            return []

    @property
    def pid(self) -> int:
        return until(
            lambda: next((line["pid"] for line in self._lines() if "pid" in line), None), 30, "a pid"
        )

    def exit_code(self) -> int | None:
        """The exit code of hive itself (negative: the signal), None while it runs."""
        return next((line["exit"] for line in self._lines() if "exit" in line), None)

    def send(self, signal_number: int) -> None:
        os.kill(self.pid, signal_number)

    def wait_exit(self, seconds: float = 60.0) -> int:
        """Wait for hive's end *and* for the end of everything it started; returns its exit code."""
        assert self._cradle is not None
        try:
            until(lambda: self.exit_code() is not None, seconds, "hive's end")
            try:
                self._cradle.wait(30)
            except subprocess.TimeoutExpired:
                left = subprocess.run(
                    ["ps", "-o", "pid,ppid,args", "--ppid", str(self._cradle.pid)],
                    capture_output=True,
                    text=True,
                ).stdout
                raise AssertionError(f"processes of an ended hive are left:\n{left}") from None
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_tail()}") from None
        self._cradle = None
        code = self.exit_code()
        assert code is not None
        return code

    def kill(self) -> None:
        """SIGKILL, then wait until nothing of it is left."""
        self.send(signal.SIGKILL)
        assert self.wait_exit() == -signal.SIGKILL

    def stop(self, seconds: float = 60.0) -> int:
        """SIGTERM; returns the exit code."""
        self.send(signal.SIGTERM)
        return self.wait_exit(seconds)

    def end(self) -> None:
        """However it stands, end it: for fixtures."""
        if self._cradle is not None:
            self._end(self._cradle)
            self._cradle = None
        for store in ("postgres", "valkey"):  # a killed hive leaves them, for its next start
            StoreFolder(self.state, store).remove_socket_folder()

    def _end(self, cradle: "subprocess.Popen[bytes]") -> None:
        if self.exit_code() is None and self._lines():
            self.send(signal.SIGKILL)
        try:
            cradle.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(cradle.pid, signal.SIGKILL)
            cradle.wait()

    def log_text(self) -> str:
        return self.log_path.read_text("utf-8", "replace") if self.log_path.exists() else ""

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(self.log_text().splitlines()[-lines:])

    @property
    def base_url(self) -> str:
        at = json.loads((self.state / "http.json").read_text())
        return f"http://{at['host']}:{at['port']}"

    def status_of(self, path: str) -> int | None:
        """The HTTP status of a public page; None while nothing answers."""
        try:
            with urllib.request.urlopen(self.base_url + path, timeout=20) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code
        except (OSError, ValueError, KeyError):
            return None

    def text_of(self, path: str) -> str:
        with urllib.request.urlopen(self.base_url + path, timeout=20) as answer:
            return answer.read().decode()

    def postgres_dsn(self) -> str:
        """The embedded database's address, for tests that look inside."""
        from hive.embedded import EmbeddedPostgres
        from hive.settings import Embedded

        return EmbeddedPostgres(self.state, Embedded()).dsn

    def run_cli(self, *arguments: str, seconds: float = 120.0) -> "subprocess.CompletedProcess[str]":
        """Any hive command against this state folder, whatever its exit code."""
        return subprocess.run(
            [str(HIVE), *arguments],
            env=self.environment,
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
        )

    def cli(self, *arguments: str, seconds: float = 120.0) -> str:
        """A hive command that must succeed; returns what it printed."""
        done = self.run_cli(*arguments, seconds=seconds)
        assert done.returncode == 0, (
            f"hive {' '.join(arguments)} → {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.log_tail()}"
        )
        return done.stdout

    def json(self, *arguments: str, seconds: float = 120.0) -> Any:
        """A hive command's --json answer."""
        return json.loads(self.cli(*arguments, "--json", seconds=seconds))

    def attempt(self, connector: str) -> dict[str, Any] | None:
        """The newest attempt of a connector, by its name."""
        rows: Sequence[dict[str, Any]] = self.json("attempts")
        return next((row for row in rows if row["connector"] == connector), None)
