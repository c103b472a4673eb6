"""Real stores for tests: one PostgreSQL and one Valkey for the whole run, from the wheels, in a folder of
their own.

Each test that asks gets a database cloned from a migrated template (tenant ``public``), and an empty Valkey.
The servers die with the test run, however it ends.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from hive.embedded import EmbeddedPostgres, EmbeddedValkey
from hive.events import Events
from hive.ids import DEFAULT_TENANT
from hive.settings import Embedded, Postgres, Redis
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.store.schema import install
from hive.store.tenants import Tenants

T = TypeVar("T")
_TEMPLATE = "hive_template"
_numbers = count(1)


def on_database(dsn: str, name: str) -> str:
    """The same server's other database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


@dataclass(frozen=True, slots=True)
class PostgresServer:
    """The run's server. ``admin_dsn``: a database to create and drop others from."""

    admin_dsn: str
    template: str

    async def create(self, template: str | None = None) -> str:
        """A new database, from hive's migrated template unless told otherwise; returns its DSN."""
        name = f"test_{next(_numbers)}"
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            await connection.execute(f"create database {name} template {template or self.template}")
        finally:
            await connection.close()
        return on_database(self.admin_dsn, name)

    async def drop(self, dsn: str) -> None:
        """Drop a database and whoever is still connected to it."""
        connection = await asyncpg.connect(self.admin_dsn)
        try:
            name = urlsplit(dsn).path.removeprefix("/")
            await connection.execute(f"drop database if exists {name} with (force)")
        finally:
            await connection.close()


@pytest.fixture(scope="session")
def _aside() -> Generator[Callable[[Callable[[], Awaitable[T]]], T]]:
    """Runs a coroutine on a loop beside the tests' own, on the main thread: servers die with their thread."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:

        async def called(function: Callable[[], Awaitable[Any]]) -> Any:
            return await function()

        yield lambda function: runner.run(called(function))


@pytest.fixture(scope="session")
def _servers_dir() -> Generator[Path]:
    # Not pytest's tmp_path_factory: it keeps the folders of three runs, and these are 100 MB each.
    folder = Path(tempfile.mkdtemp(prefix="hive-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_server(_servers_dir: Path, _aside: Callable[..., Any]) -> Generator[PostgresServer]:
    """The run's PostgreSQL, with a migrated template. Not durable: a crash ends the run anyway."""
    options = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off"}
    server = EmbeddedPostgres(
        _servers_dir, Embedded(postgres_shared_buffers_mb=32), options={**options, "max_connections": "200"}
    )

    async def prepare() -> PostgresServer:
        admin_dsn = await server.start()
        made = PostgresServer(admin_dsn, _TEMPLATE)
        connection = await asyncpg.connect(admin_dsn)
        try:
            await connection.execute(f"create database {_TEMPLATE}")
        finally:
            await connection.close()
        database = await Database.open(on_database(admin_dsn, _TEMPLATE), settings=Postgres(pool_size=1))
        try:
            async with database.transaction() as transaction:
                await install(transaction, "shared", "hive")
            await Tenants(database).create(DEFAULT_TENANT)
        finally:
            await database.close()
        return made

    try:
        yield _aside(prepare)
    finally:
        _aside(server.stop)


@pytest.fixture
async def postgres_dsn(postgres_server: PostgresServer) -> AsyncGenerator[str]:
    """A fresh database with hive's schema and the tenant ``public``."""
    dsn = await postgres_server.create()
    yield dsn
    await postgres_server.drop(dsn)


@pytest.fixture
async def empty_postgres_dsn(postgres_server: PostgresServer) -> AsyncGenerator[str]:
    """A fresh database with nothing in it."""
    dsn = await postgres_server.create("template1")
    yield dsn
    await postgres_server.drop(dsn)


@pytest.fixture
def events() -> Events:
    return Events()


@pytest.fixture
async def database(postgres_dsn: str, events: Events) -> AsyncGenerator[Database]:
    """A fresh database, open."""
    opened = await Database.open(postgres_dsn, settings=Postgres(pool_size=8, call_seconds=10), events=events)
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def valkey_server(_servers_dir: Path, _aside: Callable[..., Any]) -> Generator[str]:
    """The run's Valkey: its URL."""
    server = EmbeddedValkey(_servers_dir, Embedded())
    try:
        yield _aside(server.start)
    finally:
        _aside(server.stop)


@pytest.fixture
async def valkey_url(valkey_server: str) -> str:
    """An empty Valkey."""
    store = await RedisStore.open(valkey_server, Redis())
    try:
        await store.client.flushall()
    finally:
        await store.close()
    return valkey_server


@pytest.fixture
async def redis_store(valkey_url: str, events: Events) -> AsyncGenerator[RedisStore]:
    """An empty Valkey, connected."""
    store = await RedisStore.open(valkey_url, Redis(call_seconds=5), events)
    yield store
    await store.close()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """A state folder of the test's own; not made yet."""
    return tmp_path / "state"
