"""A hive that is started and stopped again and again, at several moments of its start, says no error."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hive.testing.fault_proxy import Endpoint, FaultProxy
from patience import until

ROUNDS = 2


@pytest.mark.timeout(300)
async def test_no_error_is_logged_by_starts_and_stops(
    postgres_dsn: str, valkey_url: str, tmp_path: Path
) -> None:
    log, state = tmp_path / "log", tmp_path / "state"
    place = state / "http.json"
    moments: dict[str, Callable[[], bool]] = {
        "connecting": lambda: proxy.accepted > before,
        "the port": place.exists,
        "HTTP": lambda: "http.listening" in log.read_text(),
        "ready": lambda: "hive.ready" in log.read_text(),
    }
    # By TCP, as most are: asyncpg does more there than over a socket of Unix.
    async with FaultProxy(Endpoint.of(postgres_dsn)) as proxy:
        for moment, come in [*moments.items()] * ROUNDS:
            before = proxy.accepted
            with log.open("w") as stream:
                process = subprocess.Popen(
                    [sys.executable, "-m", "supervisor.main", "run", "--state", str(state), "--port", "0"],
                    env={
                        "PATH": os.environ["PATH"],
                        "PYTHONPATH": os.pathsep.join(sys.path),
                        "HIVE_POSTGRES__DSN": proxy.through(postgres_dsn),
                        "HIVE_REDIS__URL": valkey_url,
                    },
                    stdout=stream,
                    stderr=stream,
                )
            try:
                await until(come, seconds=60, what=moment)
                process.send_signal(signal.SIGTERM)
                await until(lambda: process.poll() is not None, seconds=60, what=f"the end after {moment}")
            finally:
                process.kill()
                process.wait()
            said = log.read_text()
            assert process.returncode == 0, f"{moment}: {said}"
            assert "never retrieved" not in said
            assert "Traceback" not in said
            assert _errors(said) == [], said


def _errors(said: str) -> list[dict[str, str]]:
    lines = [json.loads(line) for line in said.splitlines()]
    # That the loop stood still is a loaded machine's doing.
    return [
        each for each in lines if each["level"] in ("error", "critical") and each["event"] != "loop.stalled"
    ]
