"""Where trials take place: a database of their own, a Redis, and proxies that the consumers go through."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import asyncpg
import redis.asyncio as aioredis

from databases import make_template, on_database, run
from hive.embedded import EmbeddedPostgres, EmbeddedValkey
from hive.settings import Embedded
from hive.testing.fault_proxy import FaultProxy

_TEMPLATE = "chaos_template"
_numbers = count(1)

# `number` is the job's: what an application would call its work, whatever messages carried it. Nothing here
# keeps a number from coming twice; `key` is what handlers that cannot be transactional go by.
_TABLES = """
create schema chaos;
create table chaos.effect (
    number   integer not null,
    message  uuid not null,
    key      text unique,
    at       timestamptz not null default clock_timestamp()
);
create index on chaos.effect (at);
"""


@dataclass(frozen=True, kw_only=True)
class Servers:
    """A Postgres and a Valkey that may be ended and started again."""

    postgres: EmbeddedPostgres
    valkey: EmbeddedValkey


@dataclass(frozen=True, kw_only=True)
class Arena:
    """One trial's stores. ``dsn``, ``redis_url``: straight to them, for whoever watches.

    ``servers`` is None where the stores are shared with others, and are not to be restarted.
    """

    dsn: str
    redis_url: str
    postgres_proxy: FaultProxy
    redis_proxy: FaultProxy
    folder: Path
    servers: Servers | None = None

    @property
    def consumer_dsn(self) -> str:
        return self.postgres_proxy.through(self.dsn)

    @property
    def consumer_redis_url(self) -> str:
        return self.redis_proxy.through(self.redis_url)


@asynccontextmanager
async def arena(dsn: str, redis_url: str, servers: Servers | None = None) -> AsyncGenerator[Arena]:
    """An arena on a migrated database with the tenant ``public``, and on an empty Redis."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(_TABLES)
    finally:
        await connection.close()
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="chaos-")))
        postgres_proxy = await stack.enter_async_context(FaultProxy.before(dsn, folder))
        redis_proxy = await stack.enter_async_context(FaultProxy.before(redis_url, folder))
        yield Arena(
            dsn=dsn,
            redis_url=redis_url,
            postgres_proxy=postgres_proxy,
            redis_proxy=redis_proxy,
            folder=folder,
            servers=servers,
        )


class Ground:
    """Servers of this run's own, and a fresh arena for each trial."""

    def __init__(self, servers: Servers, admin_dsn: str, redis_url: str) -> None:
        self._servers = servers
        self._admin_dsn = admin_dsn
        self._redis_url = redis_url

    @classmethod
    @asynccontextmanager
    async def open(cls, folder: Path) -> "AsyncGenerator[Ground]":
        """Start the servers under ``folder``, as durable as hive ships them."""
        servers = Servers(
            postgres=EmbeddedPostgres(folder, Embedded()), valkey=EmbeddedValkey(folder, Embedded())
        )
        try:
            admin_dsn = await servers.postgres.start()
            redis_url = await servers.valkey.start()
            await make_template(admin_dsn, _TEMPLATE)
            yield cls(servers, admin_dsn, redis_url)
        finally:
            await servers.valkey.stop()
            await servers.postgres.stop()

    @asynccontextmanager
    async def arena(self) -> AsyncGenerator[Arena]:
        name = f"chaos_{next(_numbers)}"
        await run(self._admin_dsn, f"create database {name} template {_TEMPLATE}")
        client = aioredis.Redis.from_url(self._redis_url)
        try:
            await client.flushall()
        finally:
            await client.aclose()
        try:
            async with arena(on_database(self._admin_dsn, name), self._redis_url, self._servers) as made:
                yield made
        finally:
            await run(self._admin_dsn, f"drop database {name} with (force)")
