"""The leader lease in Postgres, for a hive without Redis: lease and term are one row, taken at once."""

from typing import Self
from uuid import UUID

from hive.ids import ProcessId
from hive.locks.port import CALL_SECONDS
from hive.settings import Postgres as PostgresSettings
from hive.store.postgres import Database


class PostgresLease:
    """One process's side of the lease. See ``hive.locks.port.LeaderLease`` for what each method promises.

    The lease ends by the database's clock. No session is held: a session lock would end with any hiccup of
    the connection, and would not survive a transaction pooler.
    """

    def __init__(self, database: Database, *, instance: UUID, process: ProcessId, ttl_seconds: float) -> None:
        self.ttl_seconds = ttl_seconds
        self._database = database
        self._instance = instance
        self._process = process
        self._term = 0

    @classmethod
    async def open(
        cls,
        dsn: str,
        settings: PostgresSettings,
        *,
        instance: UUID,
        process: ProcessId,
        ttl_seconds: float,
    ) -> Self:
        """A lease on its own connection to ``dsn``. Raises ``StoreDown``."""
        database = await Database.open(
            dsn, settings=settings.model_copy(update={"pool_size": 1, "call_seconds": CALL_SECONDS})
        )
        return cls(database, instance=instance, process=process, ttl_seconds=ttl_seconds)

    async def try_acquire(self) -> int | None:
        # An earlier boot of this instance is dead for certain, and its lease is not waited out.
        async with self._database.acquire() as connection:
            term: int | None = await connection.fetchval(
                """
                update hive.leader_term
                set term = term + 1, process = $1, taken_at = now(),
                    lease_until = now() + make_interval(secs => $3)
                where lease_until is null or lease_until <= now()
                   or process = $1 or process in (select id from hive.process where instance = $2)
                returning term
                """,
                self._process,
                self._instance,
                self.ttl_seconds,
                timeout=CALL_SECONDS,
            )
        if term is not None:
            self._term = term
        return term

    async def renew(self) -> bool:
        async with self._database.acquire() as connection:
            renewed = await connection.fetchval(
                """
                update hive.leader_term
                set lease_until = now() + make_interval(secs => $3)
                where term = $1 and process = $2 and lease_until is not null
                returning true
                """,
                self._term,
                self._process,
                self.ttl_seconds,
                timeout=CALL_SECONDS,
            )
        return bool(renewed)

    async def release(self) -> None:
        async with self._database.acquire() as connection:
            await connection.execute(
                "update hive.leader_term set lease_until = null where term = $1 and process = $2",
                self._term,
                self._process,
                timeout=CALL_SECONDS,
            )

    async def close(self) -> None:
        await self._database.close()
