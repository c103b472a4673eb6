"""The stores of one hive: embedded or external, opened at start, closed at the end.

A start waits for stores that are away (``process.stores_wait_seconds``); what can never work (a wrong
password, a missing extension, another hive's folder) is said at once.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import anyio

from hive.clock import Clock
from hive.embedded import EmbeddedPostgres, EmbeddedValkey
from hive.errors import ConfigurationError, HiveError, StoreDown, StoresMissing
from hive.events import Events
from hive.logger import get_logger
from hive.settings import Settings
from hive.store.migration import ensure_migrated, pending
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from supervisor.service import Service
from supervisor.tree import leaves

log = get_logger(__name__)

AGAIN_SECONDS = 0.25
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """``redis`` is None where it is switched off; the embedded ones are None where an address was given."""

    database: Database
    redis: RedisStore | None
    redis_url: str
    postgres: EmbeddedPostgres | None
    valkey: EmbeddedValkey | None

    def services(self) -> list[Service]:
        """The embedded servers as services: one that dies is started again on the same data."""
        found: list[Service] = []
        if self.postgres is not None:
            found.append(Service(name="postgres", run=self.postgres.run, critical=True))
        if self.valkey is not None:
            found.append(Service(name="valkey", run=self.valkey.run, critical=True))
        return found

    async def close(self) -> None:
        """Close the connections, then stop the embedded servers. Takes at most a minute."""
        if self.redis is not None:
            await self.redis.close()
        await self.database.close()
        async with anyio.create_task_group() as group:
            if self.valkey is not None:
                group.start_soon(self.valkey.stop)
            if self.postgres is not None:
                group.start_soon(self.postgres.stop)


async def open_stores(settings: Settings, *, events: Events, clock: Clock) -> Stores:
    """Start what is embedded, connect, and bring the schema up to date where that is wanted.

    Raises StoresMissing when a store stays away for the whole wait, ConfigurationError for what waiting
    cannot mend. Cancelled or failed, it leaves no embedded server behind.
    """
    state = settings.process.state_dir
    dsn = settings.postgres.dsn.get_secret_value()
    direct_dsn = settings.postgres.direct_dsn.get_secret_value()
    url = settings.redis.url.get_secret_value()
    postgres = None if dsn else EmbeddedPostgres(state, settings.embedded)
    valkey = None if url or not settings.redis.enabled else EmbeddedValkey(state, settings.embedded)
    database: Database | None = None
    redis: RedisStore | None = None
    try:
        async with anyio.create_task_group() as group:
            if postgres is not None:
                group.start_soon(postgres.start)
            if valkey is not None:
                group.start_soon(valkey.start)
        dsn = dsn or (postgres.dsn if postgres is not None else "")
        url = url or (valkey.url if valkey is not None else "")
        limit = settings.process.stores_wait_seconds

        async def open_database() -> None:
            nonlocal database
            database = await _waiting(
                "Postgres",
                lambda: Database.open(
                    dsn, direct_dsn=direct_dsn, settings=settings.postgres, events=events, clock=clock
                ),
                limit_seconds=limit,
                clock=clock,
            )
            await _bring_up_to_date(database, allowed=settings.postgres.migrate_on_start)

        async def open_redis() -> None:
            nonlocal redis
            redis = await _waiting(
                "Redis",
                lambda: RedisStore.open(url, settings.redis, events),
                limit_seconds=limit,
                clock=clock,
            )

        async with anyio.create_task_group() as group:
            group.start_soon(open_database)
            if settings.redis.enabled:
                group.start_soon(open_redis)
        assert database is not None
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            if redis is not None:
                await redis.close()
            if database is not None:
                await database.close()
            for server in (postgres, valkey):
                if server is not None:
                    await server.stop()
        if isinstance(error, BaseExceptionGroup):
            # Both servers may fail, of one cause (a full disk, a user that does not exist): one is said.
            failures = list(leaves(error))
            if all(isinstance(failure, HiveError) for failure in failures):
                raise failures[0] from None
        raise
    return Stores(database=database, redis=redis, redis_url=url, postgres=postgres, valkey=valkey)


async def _bring_up_to_date(database: Database, *, allowed: bool) -> None:
    if not await pending(database):
        return
    if not allowed:
        raise ConfigurationError(
            "the database's schema is behind this hive, and postgres.migrate_on_start is false",
            remedy="run `hive migrate --all-tenants`",
        )
    await ensure_migrated(database.direct_dsn)


async def _waiting(
    store: str, connect: Callable[[], Awaitable[T]], *, limit_seconds: float, clock: Clock
) -> T:
    deadline = clock.monotonic() + limit_seconds
    said = False
    while True:
        try:
            return await connect()
        except StoreDown as error:
            if clock.monotonic() >= deadline:
                raise StoresMissing(
                    f"{store} did not answer for {limit_seconds:g} s: {error.message}",
                    remedy=f"is the address right? see HIVE_{store.upper()}__…",
                ) from error
            if not said:
                log.warning("start.waiting", store=store, limit_seconds=limit_seconds, cause=error.message)
                said = True
        await anyio.sleep(AGAIN_SECONDS)
