"""One benchmark run: stores up, environments made, workers started and ended; what the cases work with."""

import contextlib
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from environments import Environments
from stores import Stores
from systems import System

APPS = Path(__file__).parent / "apps"
SENDING_SECONDS = 300.0


class Failed(Exception):
    """A system did not do what it was asked; the message becomes the note in the table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What a client took to send: seconds, and of them on a processor."""

    seconds: float
    processor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What a worker noted, see ``apps/recorder.py``."""

    count: int
    first: float
    last: float
    processor: float
    busy: float
    delays: Sequence[float]

    @property
    def per_second(self) -> float:
        return self.count / (self.last - self.first)


class Worker:
    """A system's worker: one command with all the processes it starts."""

    def __init__(self, process: subprocess.Popen[bytes], notes_path: Path, log_path: Path) -> None:
        self.process = process
        self.log_path = log_path
        self._notes_path = notes_path

    def notes(self, seconds: float) -> Notes:
        """Its notes, once it has run what was expected; raises Failed after ``seconds``, or at its end."""
        wait_for(self._notes_path.exists, seconds, "all tasks ran", self)
        return Notes(**json.loads(self._notes_path.read_text()))

    def tail(self) -> str:
        """The last line it printed."""
        lines = self.log_path.read_text("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def kill(self) -> None:
        """SIGKILL, all of it."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Bench:
    """``quick``: one round, fewer tasks for the slow ones. ``root``: where everything is kept."""

    def __init__(self, root: Path, *, quick: bool) -> None:
        self.root = root
        self.quick = quick
        self.rounds = 1 if quick else 3
        self.stores = Stores(root / "stores")
        self.environments = Environments(root / "environments")
        self._runs = 0
        self._workers: list[Worker] = []
        (root / "logs").mkdir(parents=True, exist_ok=True)
        self._lock = _alone(root / "lock")

    def end(self) -> None:
        """Whatever still runs."""
        for worker in self._workers:
            worker.kill()
        self.stores.stop()

    def able(self, system: System) -> str:
        """Why a system cannot be measured; nothing if it can."""
        self.environments.prepare([system.environment])
        return self.environments.missing.get(system.environment, "")

    def fresh(self, system: System) -> None:
        """Empty stores for one run of ``system``."""
        if system.environment == "procrastinate":
            self.stores.fresh("bench_procrastinate", lambda dsn: self._procrastinate(system, dsn))
        else:
            self.stores.fresh("bench_hive")

    def send(self, system: System, *arguments: object, script: str = "driver.py") -> Sent:
        """Have ``system``'s own client send; returns what that took."""
        try:
            done = subprocess.run(
                [
                    *(self.environments.program(system.environment, "python"), script, system.module),
                    *(str(argument) for argument in arguments),
                ],
                cwd=APPS,
                env=self.environment(system),
                capture_output=True,
                text=True,
                timeout=SENDING_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"sending took over {SENDING_SECONDS:.0f} s") from None
        if done.returncode:
            raise Failed(f"sending failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:200]}")
        return Sent(**json.loads(done.stdout.strip().splitlines()[-1]))

    @contextlib.contextmanager
    def worker(
        self,
        system: System,
        *,
        expect: int = 0,
        expect_delays: int = 0,
        slots: int | None = None,
        prefetch: int | None = None,
        effects: Path | None = None,
    ) -> Generator[Worker]:
        """A worker of ``system``, killed at the end."""
        slots = slots or system.slots
        notes = self.path("notes", system)
        variables = {
            "BENCH_EXPECT": str(expect),
            "BENCH_EXPECT_DELAYS": str(expect_delays),
            "BENCH_OUT": str(notes),
            "BENCH_SLOTS": str(slots),
            "BENCH_PREFETCH": str(slots * 4 if prefetch is None else prefetch),
            "BENCH_EFFECTS": str(effects or ""),
        }
        name, *rest = system.command(slots)
        command = [self.environments.program(system.environment, name), *rest]
        with self.process(command, self.environment(system) | variables, system, notes) as worker:
            yield worker

    @contextlib.contextmanager
    def hive_run(
        self, system: System, *, state: Path, slots: int, expect: int = 0, effects: Path | None = None
    ) -> Generator[Worker]:
        """A whole ``hive run`` on these stores, with the benchmark's tasks on ``slots`` unless 0."""
        notes = self.path("notes", system)
        variables = {
            "HIVE_STATE_DIR": str(state),
            "HIVE_HTTP__PORT": "0",
            "HIVE_POSTGRES__DSN": self.stores.postgres_dsn,
            "HIVE_REDIS__URL": self.stores.redis_url,
            "BENCH_EXPECT": str(expect),
            "BENCH_OUT": str(notes),
            "BENCH_EFFECTS": str(effects or ""),
        }
        if slots:
            variables |= {
                "HIVE_PROCESS__MODULES": '["hive_app"]',
                "HIVE_POOLS__BENCH__SLOTS": str(slots),
                "HIVE_POOLS__BENCH__PREFETCH": str(slots),
                f"HIVE_POOLS__BENCH__{system.carrier.upper()}": '["bench"]',
            }
        command = [self.environments.program("hive", "hive"), "run"]
        with self.process(command, self.environment(system) | variables, system, notes) as worker:
            yield worker

    def state_folder(self) -> Path:
        """A new state folder for a whole hive."""
        self._runs += 1
        folder = self.root / "state" / f"{self._runs:04}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        return folder

    @contextlib.contextmanager
    def process(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        system: System,
        notes: Path | None = None,
    ) -> Generator[Worker]:
        """Any command as a worker."""
        log_path = self.path("log", system)
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command],
                cwd=APPS,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        worker = Worker(process, notes or self.path("notes", system), log_path)
        self._workers.append(worker)
        try:
            yield worker
        finally:
            worker.kill()
            self._workers.remove(worker)

    def environment(self, system: System) -> dict[str, str]:
        """What a system's processes find in their environment."""
        kept = {
            name: os.environ[name]
            for name in ("PATH", "HOME", "LANG", "TZ", "LD_LIBRARY_PATH")
            if name in os.environ
        }
        return kept | {
            "BENCH_REDIS": self.stores.redis_url,
            "BENCH_POSTGRES": self.stores.postgres_dsn,
            "BENCH_CARRIER": system.carrier,
            "PYTHONPATH": os.pathsep.join([str(APPS), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONWARNINGS": "ignore",
        }

    def path(self, kind: str, system: System) -> Path:
        """A new path below ``logs``."""
        self._runs += 1
        path = self.root / "logs" / f"{self._runs:04}-{system.name.replace(' ', '-')}.{kind}"
        path.unlink(missing_ok=True)
        return path

    def _procrastinate(self, system: System, dsn: str) -> None:
        program = self.environments.program("procrastinate", "procrastinate")
        done = subprocess.run(
            [program, "--app", "procrastinate_app.app", "schema", "--apply"],
            cwd=APPS,
            env=self.environment(system) | {"BENCH_POSTGRES": dsn},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise Failed(f"its schema was refused: {done.stderr.strip()[-200:]}")


def wait_for(condition: Callable[[], Any], seconds: float, what: str, worker: Worker | None = None) -> float:
    """Wait until ``condition`` holds; returns how long.

    Raises Failed after ``seconds``, or at the worker's end.
    """
    began = time.monotonic()
    while not condition():
        if worker is not None and worker.process.poll() is not None:
            raise Failed(f"its worker ended with {worker.process.returncode}: {worker.tail()}")
        if time.monotonic() - began > seconds:
            raise Failed(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.005)
    return time.monotonic() - began


def _alone(path: Path) -> TextIO:
    """Wait until no other run measures here: two at once would measure each other."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        report("another run is under way; waiting for its end")
        fcntl.flock(file, fcntl.LOCK_EX)
    return file


def report(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)
