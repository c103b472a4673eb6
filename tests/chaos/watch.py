"""What a trial sees of the stores, straight and whatever happens to them."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import redis.asyncio as aioredis
from redis import exceptions

T = TypeVar("T")

STEP_SECONDS = 0.05
AWAY_SECONDS = 60.0
WINDOW_SECONDS = 0.5
"""Speed is measured over so long."""

_AWAY = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # the server said goodbye, and its end is not here yet
    exceptions.RedisError,
)


class NotInTime(AssertionError):
    """What a trial waited for did not come."""


async def until(condition: Callable[[], Awaitable[T]], *, seconds: float, what: str) -> T:
    """Poll until ``condition`` gives something true, and return that; raises NotInTime naming ``what``."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        value = await condition()
        if value:
            return value
        if asyncio.get_running_loop().time() > deadline:
            raise NotInTime(f"not within {seconds:g} s: {what}")
        await asyncio.sleep(STEP_SECONDS)


class Watch:
    """Questions to Postgres and Redis over connections of its own, asked again while a store is away."""

    def __init__(self, dsn: str, redis_url: str) -> None:
        self._dsn = dsn
        self._connection: Any = None
        self._asking = asyncio.Lock()
        self.redis: Any = aioredis.Redis.from_url(redis_url, client_name="watch")

    async def ask(self, query: str, *arguments: Any) -> Sequence[Any]:
        """Rows of a query on Postgres."""
        return await self._again(lambda: self._ask(query, *arguments))

    async def value(self, query: str, *arguments: Any) -> Any:
        """The first value of the first row."""
        return (await self.ask(query, *arguments))[0][0]

    async def _ask(self, query: str, *arguments: Any) -> Sequence[Any]:
        async with self._asking:
            try:
                if self._connection is None:
                    self._connection = await asyncpg.connect(
                        self._dsn,
                        server_settings={"application_name": "watch"},
                        timeout=5,
                        command_timeout=10,
                    )
                return await self._connection.fetch(query, *arguments)
            except _AWAY:
                self._drop()
                raise

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed():
            connection.terminate()

    async def ask_redis(self, *command: Any) -> Any:
        """One command."""
        return await self._again(lambda: self.redis.execute_command(*command))

    async def _again(self, call: Callable[[], Awaitable[T]]) -> T:
        async with asyncio.timeout(AWAY_SECONDS):
            while True:
                try:
                    return await call()
                except _AWAY:
                    await asyncio.sleep(STEP_SECONDS)

    async def close(self) -> None:
        self._drop()
        await self.redis.aclose()

    # -- effects --------------------------------------------------------------------------------------------

    async def done(self) -> int:
        """Numbers that have an effect."""
        return await self.value("select count(distinct number) from chaos.effect")

    async def missing(self, upto: int) -> list[int]:
        """Numbers below ``upto`` without an effect."""
        rows = await self.ask(
            """
            select number from generate_series(0, $1::integer - 1) as number
            where not exists (select from chaos.effect where effect.number = number.number)
            """,
            upto,
        )
        return [row[0] for row in rows]

    async def doubled(self) -> int:
        """Effects beyond the first of each number."""
        return await self.value("select count(*) - count(distinct number) from chaos.effect")

    async def speed(self) -> float:
        """Effects a second since the first one."""
        return await self.value(
            """
            select count(*) / greatest(extract(epoch from clock_timestamp() - min(at)), 0.001)::float8
            from chaos.effect
            """
        )

    async def without_effect(self, messages: Sequence[UUID]) -> list[UUID]:
        """Those of ``messages`` that have had none yet."""
        rows = await self.ask(
            """
            select id from unnest($1::uuid[]) as id
            where not exists (select from chaos.effect where message = id)
            """,
            list(messages),
        )
        return [row[0] for row in rows]

    async def now(self) -> Any:
        """Postgres' time."""
        return await self.value("select clock_timestamp()")

    async def seconds_to_speed(self, since: Any, per_second: float) -> float | None:
        """Seconds from ``since`` to the first window in which effects came at ``per_second`` or faster."""
        rows = await self.ask(
            "select extract(epoch from at - $1)::float8 from chaos.effect where at >= $1 order by at", since
        )
        times = [row[0] for row in rows]
        needed = max(1, round(per_second * WINDOW_SECONDS))
        for first, last in zip(times, times[needed - 1 :], strict=False):
            if last - first <= WINDOW_SECONDS:
                return first
        return None

    # -- connections ----------------------------------------------------------------------------------------

    async def postgres_connections(self) -> int:
        """Those of consumers and publishers, as Postgres counts them."""
        return await self.value(
            """
            select count(*) from pg_stat_activity
            where datname = current_database() and application_name like 'hive%'
            """
        )

    async def open_transactions(self) -> int:
        """Those that wait for their client."""
        return await self.value(
            """
            select count(*) from pg_stat_activity
            where datname = current_database() and state like 'idle in transaction%'
            """
        )

    async def redis_connections(self) -> int:
        """Those of consumers and publishers, as Redis counts them."""
        clients = await self._again(self.redis.client_list)
        return sum(each["name"] == "hive" for each in clients)

    # -- the queue ------------------------------------------------------------------------------------------

    async def unlocked(self, messages: Sequence[UUID]) -> list[UUID]:
        """Those of ``messages`` that are running jobs, and that no transaction holds."""
        rows = await self.ask(
            "select id from hive.job where state = 'running' and id = any($1) for update skip locked",
            list(messages),
        )
        return [row[0] for row in rows]

    async def unfinished_jobs(self) -> int:
        """Rows of the ledger that did not complete."""
        return await self.value("select count(*) from hive.job where state <> 'completed'")

    async def dead_letters(self) -> int:
        return await self.value("select count(*) from hive.dead_letter")
