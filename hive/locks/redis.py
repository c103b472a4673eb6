"""The leader lease in Redis: a key with a token and a time to live; its terms stand in Postgres.

Redis may forget the key at any moment (a flush, a restart without persistence). That ends a leadership or
lets a second process lead early; it never lets two write, since each took a term of its own.
"""

from importlib.resources import files
from typing import Final, Self
from uuid import UUID

from hive.errors import StoreDown
from hive.ids import ProcessId
from hive.locks.port import CALL_SECONDS
from hive.logger import get_logger
from hive.settings import Redis as RedisSettings
from hive.store.postgres import Database
from hive.store.redis import RedisStore

log = get_logger(__name__)

KEY: Final = "hive:leader"


def _script(name: str) -> str:
    return files("hive.locks").joinpath("lua", f"{name}.lua").read_text()


ACQUIRE: Final = _script("acquire")
RENEW: Final = _script("renew")
RELEASE: Final = _script("release")


class RedisLease:
    """One process's side of the lease. See ``hive.locks.port.LeaderLease`` for what each method promises."""

    def __init__(
        self, store: RedisStore, database: Database, *, instance: UUID, process: ProcessId, ttl_seconds: float
    ) -> None:
        self.ttl_seconds = ttl_seconds
        self._store = store
        self._database = database
        self._process = process
        self._prefix = f"{instance}:"
        self._token = f"{instance}:{process}"
        self._milliseconds = round(ttl_seconds * 1000)

    @classmethod
    async def open(
        cls,
        url: str,
        settings: RedisSettings,
        database: Database,
        *,
        instance: UUID,
        process: ProcessId,
        ttl_seconds: float,
    ) -> Self:
        """A lease on its own connection to ``url``; ``database`` keeps the terms. Raises ``StoreDown``."""
        own = {"pool_size": 1, "call_seconds": min(settings.call_seconds, CALL_SECONDS)}
        store = await RedisStore.open(url, settings.model_copy(update=own))
        return cls(store, database, instance=instance, process=process, ttl_seconds=ttl_seconds)

    async def try_acquire(self) -> int | None:
        """Take the lease, then the term after the one that was present *before* it was taken.

        That order matters: a process that slept between its lease and its term finds the term moved on, and
        stays a candidate instead of deposing the leader of today.
        """
        if await self._held_by_another():
            return None
        before = await self._term()
        if not await self._call(
            "taking the leader lease", ACQUIRE, self._token, self._prefix, self._milliseconds
        ):
            return None
        try:
            term = await self._take_term_after(before)
        except StoreDown:
            await self._give_up_quietly()
            raise
        if term is None:
            await self._give_up_quietly()
        return term

    async def renew(self) -> bool:
        return bool(await self._call("renewing the leader lease", RENEW, self._token, self._milliseconds))

    async def release(self) -> None:
        await self._call("releasing the leader lease", RELEASE, self._token)

    async def close(self) -> None:
        await self._store.close()

    async def _held_by_another(self) -> bool:
        """A look before the attempt, so that a waiting candidate costs one GET a second and no write."""
        with self._store.translating("reading the leader lease"):
            holder = await self._store.client.get(KEY)
        if holder is None:
            return False
        text = holder.decode() if isinstance(holder, bytes) else holder
        return not text.startswith(self._prefix)

    async def _term(self) -> int:
        async with self._database.acquire() as connection:
            return int(await connection.fetchval("select term from hive.leader_term", timeout=CALL_SECONDS))

    async def _take_term_after(self, before: int) -> int | None:
        async with self._database.acquire() as connection:
            return await connection.fetchval(
                """
                update hive.leader_term
                set term = term + 1, process = $2, taken_at = now(), lease_until = null
                where term = $1
                returning term
                """,
                before,
                self._process,
                timeout=CALL_SECONDS,
            )

    async def _give_up_quietly(self) -> None:
        try:
            await self.release()
        except StoreDown as error:
            log.info("leader.lease_left_to_expire", cause=str(error))

    async def _call(self, doing: str, script: str, *arguments: str | int) -> int:
        with self._store.translating(doing):
            return int(await self._store.client.eval(script, 1, KEY, *arguments))
