"""A peer in hive's place: installed into an environment of its own, killed and frozen like hive's consumers.

It is here to show that these trials can fail. Its handlers make their effects as hive's transactional ones
do, by a plain insert; what its library has against doing that twice is what is looked at.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from crew import Member
from publisher import Publisher

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parent.parent / ".bench" / "chaos-taskiq"
PACKAGES = ("taskiq==0.11.20", "taskiq-redis==1.1.2", "asyncpg==0.30.0", "hiredis==3.5.0")
PEERS = ("taskiq",)


def install() -> None:
    """Make the peer's environment, unless it is there."""
    mark = ENVIRONMENT / "packages"
    if mark.exists() and mark.read_text() == "\n".join(PACKAGES):
        return
    print("installing taskiq", flush=True)
    uv, python = Path(sys.executable).parent / "uv", str(ENVIRONMENT / "bin" / "python")
    if uv.exists():
        make = [str(uv), "venv", "--quiet", "--clear", "--python", sys.executable, str(ENVIRONMENT)]
        fill = [str(uv), "pip", "install", "--quiet", "--python", python]
    else:
        make = [sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT)]
        fill = [python, "-m", "pip", "install", "--quiet"]
    subprocess.run(make, check=True)
    subprocess.run([*fill, *PACKAGES], check=True)
    mark.write_text("\n".join(PACKAGES))


def environment(options: dict[str, Any], journal: Path | None) -> dict[str, str]:
    """What ``peer_taskiq`` goes by."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    given = {"CHAOS_DSN": options["dsn"], "CHAOS_REDIS": options["redis_url"], "PYTHONPATH": str(HERE)}
    if journal is not None:
        given["CHAOS_JOURNAL"] = str(journal)
    if options["idle_seconds"] is not None:
        given["CHAOS_IDLE_SECONDS"] = str(options["idle_seconds"])
    return {**inherited, **given}


class PeerMember(Member):
    """A worker under the peer's own command line: a process group. It cannot be asked for anything."""

    async def start(self, *, heir: bool = True, **changes: Any) -> None:
        del heir, changes
        assert not self.alive
        journal = self.new_journal()
        with self.errors.open("ab") as errors:
            self._process = await asyncio.create_subprocess_exec(
                str(ENVIRONMENT / "bin" / "taskiq"),
                *("worker", "peer_taskiq:broker", "--workers", "1"),
                *("--max-async-tasks", str(self._options["slots"]), "--log-level", "WARNING"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=environment(self._options, journal),
                start_new_session=True,
            )

    async def status(self) -> dict[str, Any] | None:
        if not self.alive:
            return None
        return {"ready": self.journals[-1].exists(), "slots": {"in_use": 0, "written_off": 0}}

    async def stop(self) -> dict[str, Any] | None:
        last = await self.status()
        if last is None:
            return None
        self.send(signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await self._gone()
        return {**last, "drained": {"abandoned": 0}}

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


class PeerPublisher(Publisher):
    """Publishes by a program in the peer's environment."""

    _process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        options = {"dsn": self._dsn, "redis_url": self._redis_url, "idle_seconds": None}
        self._process = await asyncio.create_subprocess_exec(
            str(ENVIRONMENT / "bin" / "python"),
            str(HERE / "peer_taskiq.py"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(options, None),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    def _make(self, numbers: range) -> list[Any]:
        return [(number, self._milliseconds()) for number in numbers]

    async def _publish(self, messages: list[Any]) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(messages).encode() + b"\n")
        if not await self._process.stdout.readline():
            raise RuntimeError("the peer's publisher ended")
