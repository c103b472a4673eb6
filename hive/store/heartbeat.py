"""The mark the heartbeat chain leaves when it came round: beat, broker, pool and handler all work."""

from abc import ABC, abstractmethod
from typing import Final

from hive.store.postgres import Database
from hive.store.redis import RedisStore

KEY: Final = "hive:heartbeat"
STATEMENT_SECONDS: Final = 5.0


class Heartbeat(ABC):
    """Written by the ``heartbeat`` task, read by the watchdog. Both raise ``StoreDown``.

    A class and not a protocol, so that ``context.service(Heartbeat)`` finds it.
    """

    @abstractmethod
    async def mark(self) -> None:
        """The chain came round just now."""

    @abstractmethod
    async def age_seconds(self) -> float | None:
        """Seconds since the last mark, by the store's clock; None: there is none, or it was too long ago."""


class RedisHeartbeat(Heartbeat):
    """A key that lives ``seconds``; its age is what its time to live has lost."""

    def __init__(self, store: RedisStore, seconds: float) -> None:
        self._store = store
        self._milliseconds = round(seconds * 1000)

    async def mark(self) -> None:
        with self._store.translating("marking the heartbeat"):
            await self._store.client.set(KEY, b"1", px=self._milliseconds)

    async def age_seconds(self) -> float | None:
        with self._store.translating("reading the heartbeat"):
            left = int(await self._store.client.pttl(KEY))
        return max(0.0, (self._milliseconds - left) / 1000) if left >= 0 else None


class PostgresHeartbeat(Heartbeat):
    """A row, for a hive without Redis. It counts for ``seconds``."""

    def __init__(self, database: Database, seconds: float) -> None:
        self._database = database
        self._seconds = seconds

    async def mark(self) -> None:
        async with self._database.acquire() as connection:
            await connection.execute(
                """
                insert into hive.heartbeat (at) values (now()) on conflict (only_row) do update set at = now()
                """,
                timeout=STATEMENT_SECONDS,
            )

    async def age_seconds(self) -> float | None:
        async with self._database.acquire() as connection:
            age = await connection.fetchval(
                "select extract(epoch from now() - at)::float8 from hive.heartbeat", timeout=STATEMENT_SECONDS
            )
        return max(0.0, float(age)) if age is not None and age <= self._seconds else None
