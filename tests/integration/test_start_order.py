"""What a start loads, and when: pools consume before anything comes that they do not need."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from patience import until

LATER = {
    "aiohttp",
    "alembic",
    "click",
    "cryptography.hazmat.primitives.ciphers.aead",
    "docx",
    "hive.ingest.connectors.files_config",
    "hive.ingest.connectors.web_config",
    "lxml",
    "numpy",
    "pygments",
    "pypdf",
    "rich",
    "sqlalchemy",
    "structlog",
    "supervisor.http.application",
    "supervisor.http.table",
}

# hive's own start, told from inside when its pools consume. Nothing else is changed but the time after which
# the second stage no longer waits for them.
START = """
import asyncio, json, sys
from supervisor import lifecycle
from supervisor.main import main

lifecycle.SECOND_STAGE_SECONDS = float(sys.argv.pop(1))
consuming = lifecycle._ready

async def told(health):
    await consuming(health)
    print(json.dumps(sorted(sys.modules)), flush=True)

async def never(health):
    await asyncio.Event().wait()

lifecycle._ready = {"told": told, "never": never}[sys.argv.pop(1)]
main()
"""


@contextmanager
def started(*how: str, state: Path, postgres: str, redis: str) -> Generator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", START, *how, "run", "--state", str(state), "--port", "0"],
        env={
            "PATH": os.environ["PATH"],
            "HIVE_POSTGRES__DSN": postgres,
            "HIVE_REDIS__URL": redis,
        },
        cwd=state.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.timeout(180)
async def test_what_no_pool_needs_is_loaded_once_they_consume(
    postgres_dsn: str, valkey_url: str, tmp_path: Path
) -> None:
    with started(
        *("60", "told"), state=tmp_path / "state", postgres=postgres_dsn, redis=valkey_url
    ) as process:
        assert process.stdout is not None
        loaded = set(json.loads(process.stdout.readline()))
    assert {"asyncpg", "redis", "supervisor.assembly", "pools.pool"} <= loaded
    assert not loaded & LATER


@pytest.mark.timeout(180)
async def test_http_answers_even_where_a_pool_cannot_consume(
    postgres_dsn: str, valkey_url: str, tmp_path: Path
) -> None:
    state = tmp_path / "state"

    def answers() -> bool:
        try:
            at = json.loads((state / "http.json").read_text())
            with urllib.request.urlopen(f"http://{at['host']}:{at['port']}/livez", timeout=20) as answer:
                return answer.status == 200
        except (OSError, ValueError, urllib.error.URLError):
            return False

    with started("0.01", "never", state=state, postgres=postgres_dsn, redis=valkey_url):
        await until(answers, seconds=60, what="/livez")
