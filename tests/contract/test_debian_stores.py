"""The contract on the oldest stores that hive supports: Debian's Redis 7.0 and PostgreSQL 15."""

import os
import shutil
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator
from pathlib import Path
from typing import Any

import anyio
import pytest

from carriers import StreamsHarness
from foreign_stores import DEBIAN_POSTGRES, absent, as_nobody, servers_folder
from hive.embedded import EmbeddedValkey
from hive.errors import StoreDown
from hive.settings import Embedded, Postgres, Redis
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.store.schema import revisions
from hive.testing.broker_contract import BrokerContract
from hive.testing.fairness_contract import FairnessContract
from hive.testing.operations_contract import OperationsContract
from hive.testing.transaction_contract import TransactionContract
from ledger_harness import LedgerHarness


@pytest.fixture(scope="module")
def folder() -> Generator[Path]:
    yield from servers_folder("debian")


@pytest.fixture(scope="module")
def redis_url(folder: Path, _aside: Callable[..., Any]) -> Generator[str]:
    program = shutil.which("redis-server")
    if program is None:
        absent("redis-server")
    server = EmbeddedValkey(folder, Embedded(), program=Path(program))
    try:
        yield _aside(server.start)
    finally:
        _aside(server.stop)


@pytest.fixture(scope="module")
def postgres_15(folder: Path) -> Generator[str]:
    """A server of its own, by a socket; hive's shared schema in it but for the extension it lacks."""
    if not (DEBIAN_POSTGRES / "postgres").exists():
        absent("postgresql-15")
    place = folder / "postgres15"
    place.mkdir()
    identity = as_nobody()
    if identity:
        os.chown(place, identity["user"], identity["group"])
    options: dict[str, Any] = {
        "cwd": place,
        "env": {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"},
        "stdout": subprocess.DEVNULL,
        "stderr": subprocess.DEVNULL,
        **identity,
    }
    subprocess.run(
        [DEBIAN_POSTGRES / "initdb", "-D", "data", "-U", "hive", "-A", "trust", "--no-sync", "-E", "UTF8"],
        check=True,
        **options,
    )
    process = subprocess.Popen(
        [
            DEBIAN_POSTGRES / "postgres",
            "-D",
            "data",
            "-k",
            place,
            "-c",
            "listen_addresses=",
            "-c",
            "fsync=off",
        ],
        **options,
    )
    try:
        yield f"postgresql://hive@/postgres?host={place}"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)


@pytest.fixture
async def old_database(postgres_15: str) -> AsyncGenerator[Database]:
    database = await opened(postgres_15)
    async with database.transaction() as connection:
        await connection.execute("drop schema if exists hive cascade; drop schema if exists hive_ext cascade")
        for revision in revisions("shared"):
            await connection.execute(revision.sql.replace("create extension if not exists vector", "--"))
    yield database
    await database.close()


async def opened(dsn: str) -> Database:
    """The server needs a moment after its start."""
    with anyio.fail_after(30):
        while True:
            try:
                return await Database.open(dsn, settings=Postgres(pool_size=8, call_seconds=10))
            except StoreDown:
                await anyio.sleep(0.05)


class TestStreamsOnRedis7(BrokerContract):
    @pytest.fixture
    async def harness(self, redis_url: str, database: Database) -> AsyncGenerator[StreamsHarness]:
        store = await RedisStore.open(redis_url, Redis())
        assert (await store.client.info("server"))["redis_version"].startswith("7.0.")
        await store.client.flushall()
        yield StreamsHarness(store, database)
        await store.close()


class OnPostgres15:
    @pytest.fixture
    async def harness(self, old_database: Database) -> LedgerHarness:
        async with old_database.acquire() as connection:
            assert (
                await connection.fetchval("select current_setting('server_version_num')::int / 10000") == 15
            )
        return await LedgerHarness.over(old_database)


class TestLedgerOnPostgres15(OnPostgres15, BrokerContract):
    pass


class TestOperationsOnPostgres15(OnPostgres15, OperationsContract):
    pass


class TestFairnessOnPostgres15(OnPostgres15, FairnessContract):
    pass


class TestTransactionsOnPostgres15(OnPostgres15, TransactionContract):
    pass
