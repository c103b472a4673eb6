"""Real stores for tests: one PostgreSQL and one Valkey for the whole run, from the wheels, in a folder of
their own.

Each test that asks gets a database as good as new (hive's schema and the tenant ``public``; see
``tests/support/databases.py``), and an empty Valkey. The servers die with the test run, however it ends.
Where the suite runs in several processes at once, each of them has servers of its own.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from databases import PostgresServer
from foreign_stores import servers_folder
from hive.embedded import EmbeddedPostgres, EmbeddedValkey
from hive.events import Events
from hive.settings import Embedded, Postgres, Redis
from hive.store.postgres import Database
from hive.store.redis import RedisStore

pytest.register_assert_rewrite("hive.testing")

T = TypeVar("T")

# Those with the longest files first: a long file that starts last is waited for by every other process.
_LONGEST_FIRST = ("system", "chaos", "integration", "contract", "unit", "bench")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    items.sort(key=lambda item: _LONGEST_FIRST.index(item.path.relative_to(here).parts[0]))


@pytest.fixture(scope="session")
def _aside() -> Generator[Callable[[Callable[[], Awaitable[T]]], T]]:
    """Runs a coroutine on a loop beside the tests' own, on the main thread: servers die with their thread."""
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:

        async def called(function: Callable[[], Awaitable[Any]]) -> Any:
            return await function()

        yield lambda function: runner.run(called(function))


@pytest.fixture(scope="session")
def _servers_dir() -> Generator[Path]:
    yield from servers_folder("test")


@pytest.fixture(scope="session")
def postgres_server(_servers_dir: Path, _aside: Callable[..., Any]) -> Generator[PostgresServer]:
    """The run's PostgreSQL, with a migrated template. Not durable: a crash ends the run anyway."""
    options = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off"}
    server = EmbeddedPostgres(
        _servers_dir, Embedded(postgres_shared_buffers_mb=32), options={**options, "max_connections": "200"}
    )

    async def prepare() -> PostgresServer:
        return await PostgresServer.over(await server.start())

    try:
        yield _aside(prepare)
    finally:
        _aside(server.stop)


@pytest.fixture
async def postgres_dsn(postgres_server: PostgresServer) -> AsyncGenerator[str]:
    """A fresh database with hive's schema and the tenant ``public``."""
    dsn = await postgres_server.take()
    yield dsn
    await postgres_server.give_back(dsn)


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
