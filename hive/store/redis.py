"""Redis: short deadlines, no hidden retries, and a client for tenants that cannot leave their keys.

Nothing is retried here. redis-py's default of ten retries runs scripts again, and turns a lost connection
into 58 seconds of silence; what may be repeated is for the caller to know.

redis-py's own ``socket_timeout`` is not used. It sends through ``asyncio.wait_for``, which before Python 3.12
returns the answer of what it waits for instead of a cancellation that comes just then: of 300 tasks that were
cancelled amid their calls, 277 went on. One deadline around each call has neither that fault nor its cost.
"""

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn, cast

import anyio
import redis.asyncio as aioredis
from redis import exceptions
from redis.asyncio.client import Pipeline
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from hive.errors import ConfigurationError, StoreDown
from hive.events import Events, StoreChanged
from hive.ids import TenantId
from hive.logger import get_logger
from hive.settings import Redis
from hive.store.address import describe, refuse_tls_mistake
from hive.tenancy import key_prefix_of

log = get_logger(__name__)

STORE = "redis"
_CLOSE_SECONDS = 5.0
# Replies that mean "not now" rather than "wrong": full memory, and what a fail-over or a full disk brings.
_NOT_NOW = (
    exceptions.OutOfMemoryError,
    exceptions.ReadOnlyError,
    exceptions.MasterDownError,
    exceptions.TryAgainError,
    exceptions.ClusterDownError,
)
_DISK_TROUBLE = "MISCONF"  # redis-py has no class for it
_AWAY = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError)


class Client(aioredis.Redis):
    """redis-py's client with one deadline for each call: a connection, if one must be made, and the answer.

    Raises TimeoutError past it. A call that is cancelled, or late, closes its connection, so that nobody
    reads an answer that is not his. What has no answer to wait for (``pubsub``, ``monitor``) is not offered.
    """

    seconds: float

    @classmethod
    def of(cls, pool: aioredis.ConnectionPool, seconds: float) -> "Client":
        """A client that owns ``pool``, and waits ``seconds`` for each answer."""
        client = cls(connection_pool=pool)
        client.auto_close_connection_pool = True
        client.seconds = seconds
        return client

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(self.seconds):
            return await super().execute_command(*args, **options)

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> "_Pipeline":
        made = _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)
        made.seconds = self.seconds
        return made

    def pubsub(self, **kwargs: Any) -> NoReturn:
        raise NotImplementedError("a subscription waits without end: read a stream through blocking_client")

    def monitor(self) -> NoReturn:
        raise NotImplementedError("a monitor waits without end")


class _Pipeline(Pipeline):
    """Several commands in one call, under its deadline."""

    seconds: float

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        async with asyncio.timeout(self.seconds):
            return await super().execute(raise_on_error)

    async def immediate_execute_command(self, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(self.seconds):
            return await super().immediate_execute_command(*args, **options)


class _Pool(aioredis.BlockingConnectionPool):
    """redis-py's pool, where a cancelled call takes no other's turn with it.

    ``asyncio.Condition`` before Python 3.13 forgets a wake-up that meets a cancellation: the connection lay
    free, and whoever waited for it was told that all are in use.
    """

    async def get_connection(self, command_name: Any = None, *keys: Any, **options: Any) -> Any:
        try:
            return await super().get_connection()
        except BaseException:
            async with self._condition:
                self._condition.notify()
            raise


class RedisStore:
    """The way to Redis. Make it with ``open``; close it when nothing uses it any more.

    ``client`` answers in bytes, in one shape whatever the protocol, within ``call_seconds``. Wrap what is
    done with it in ``translating``, so that an outage arrives as StoreDown. Who takes a connection from its
    pool has to set that deadline himself.
    """

    def __init__(self, url: str, settings: Redis, events: Events | None) -> None:
        self.url = url
        self._settings = settings
        self._events = events
        self._up = True
        # Once the address has proved right, a refusal is the server's trouble and may pass.
        self._trusted = False
        self.closed = False
        self.call_seconds = settings.call_seconds
        self.client = self._make(settings.pool_size, settings.call_seconds)
        # For who keeps a connection for good: from the common pool it would be missed.
        self.kept = self._make(settings.pool_size, settings.call_seconds)

    @classmethod
    async def open(cls, url: str, settings: Redis, events: Events | None = None) -> "RedisStore":
        """Connect once, to see that the address is right.

        Raises StoreDown when the server does not answer, ConfigurationError when it refuses the address, the
        user or the password (none of which is repeated in the message).
        """
        remedy = "check HIVE_REDIS__URL"
        try:
            store = cls(url, settings, events)
        except ValueError:
            raise ConfigurationError(
                "the address of Redis cannot be read",
                remedy=f"{remedy}: redis://:password@host:6379/0, rediss://… or unix:///path",
            ) from None
        try:
            await store.ping()
            with store.translating("answering a ping"):
                # Its first user need not wait for a connection: that takes longer than ten calls.
                await cast(Awaitable[Any], store.kept.ping())
        except exceptions.AuthenticationError:
            await store.close()
            raise ConfigurationError(
                f"Redis at {describe(url)} refused the user or the password", remedy=remedy
            ) from None
        except exceptions.ResponseError as error:
            await store.close()
            raise ConfigurationError(f"Redis at {describe(url)}: {error}", remedy=remedy) from None
        except BaseException as error:
            await store.close()
            refuse_tls_mistake("Redis", url, error)
            raise
        store._trusted = True
        return store

    def blocking_client(self, *, block_seconds: float = 2.0, connections: int = 4) -> Client:
        """A client of its own for reads that block up to ``block_seconds``; whoever asked for it closes it.

        Blocking readers hold their connection all the time: from the common pool they would starve the rest.
        """
        return self._make(connections, block_seconds + self._settings.call_seconds)

    def tenant(self, tenant: TenantId) -> "TenantRedis":
        """The same server, seen through one tenant's keys."""
        return TenantRedis(self, tenant)

    async def ping(self) -> None:
        """See that the server answers; raises StoreDown if not."""
        with self.translating("answering a ping"):
            await cast(Awaitable[Any], self.client.ping())

    async def close(self) -> None:
        """Close the common connections."""
        self.closed = True
        with anyio.move_on_after(_CLOSE_SECONDS, shield=True):
            await self.client.aclose()
            await self.kept.aclose()

    def translating(self, doing: str) -> AbstractContextManager[None]:
        """Turn errors that mean "Redis is away" into StoreDown; leave others. A success says it is back."""
        return _Translating(self, doing)

    def conclude(self, doing: str, error: BaseException | None) -> None:
        """Note how a use of the store came out; raises StoreDown when ``error`` is an outage."""
        if error is None:
            self._note(up=True)
        elif isinstance(error, _AWAY):
            refused = _refusal(error)
            if refused is not None and not self._trusted:
                raise refused from None
            if isinstance(error, exceptions.MaxConnectionsError) or "No connection available" in str(error):
                busy = f"all {self._settings.pool_size} connections are in use"
                raise StoreDown(STORE, doing, busy) from error
            self._note(up=False)
            raise StoreDown(STORE, doing, str(error) or "no answer in time") from error
        elif isinstance(error, _NOT_NOW) or (
            isinstance(error, exceptions.ResponseError) and str(error).startswith(_DISK_TROUBLE)
        ):
            raise StoreDown(STORE, doing, str(error)) from error

    def _make(self, connections: int, seconds: float) -> Client:
        pool = _Pool.from_url(
            self.url,
            max_connections=connections,
            # Less than the deadline, so that a call which got no connection is told so.
            timeout=self.call_seconds / 2,
            socket_timeout=None,
            retry=Retry(NoBackoff(), 0),
            protocol=3,
            legacy_responses=False,
            client_name="hive",
        )
        return Client.of(pool, seconds)

    def _note(self, *, up: bool) -> None:
        if up == self._up:
            return
        self._up = up
        log.info("store.up" if up else "store.down", store=STORE)
        if self._events is not None:
            self._events.publish(StoreChanged(store=STORE, up=up))


class _Translating(AbstractContextManager[None]):
    """One entering of ``translating``: as a generator it would take longer than all else around a call."""

    __slots__ = ("_doing", "_store")

    def __init__(self, store: RedisStore, doing: str) -> None:
        self._store = store
        self._doing = doing

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._store.conclude(self._doing, error)


def _refusal(error: BaseException) -> exceptions.AuthenticationError | None:
    """The refusal of user or password inside ``error``: redis-py wraps it when the first command meets it."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, exceptions.AuthenticationError):
        cause = cause.__cause__
    return cause


class TenantRedis:
    """One tenant's keys. It wraps the commands below and offers no others, so nothing reaches a foreign key.

    Every method raises StoreDown when Redis is away, and has the store's deadline.
    """

    def __init__(self, store: RedisStore, tenant: TenantId) -> None:
        self._store = store
        self._prefix = key_prefix_of(tenant)

    def key(self, name: str) -> str:
        """The full key, for what is handed to a script as a member."""
        return self._prefix + name

    async def get(self, name: str) -> bytes | None:
        return await self._run("get", self.key(name))

    async def set(
        self, name: str, value: bytes | str, *, seconds: float | None = None, absent: bool = False
    ) -> bool:
        """Set a key, for so many seconds; with ``absent`` only if there is none. True if it was set."""
        milliseconds = None if seconds is None else max(1, round(seconds * 1000))
        return bool(await self._run("set", self.key(name), value, px=milliseconds, nx=absent))

    async def delete(self, *names: str) -> int:
        return await self._run("delete", *map(self.key, names)) if names else 0

    async def exists(self, name: str) -> bool:
        return bool(await self._run("exists", self.key(name)))

    async def increment(self, name: str, by: int = 1) -> int:
        return await self._run("incrby", self.key(name), by)

    async def expire(self, name: str, seconds: float) -> bool:
        """Let a key end in so many seconds. False if there is none."""
        return bool(await self._run("pexpire", self.key(name), max(1, round(seconds * 1000))))

    async def hash_set(self, name: str, fields: Mapping[str, bytes | str | int]) -> None:
        await self._run("hset", self.key(name), mapping=dict(fields))

    async def hash_all(self, name: str) -> dict[bytes, bytes]:
        return await self._run("hgetall", self.key(name))

    async def set_add(self, name: str, *members: str) -> int:
        return await self._run("sadd", self.key(name), *members) if members else 0

    async def set_remove(self, name: str, *members: str) -> int:
        return await self._run("srem", self.key(name), *members) if members else 0

    async def set_members(self, name: str) -> frozenset[bytes]:
        return frozenset(await self._run("smembers", self.key(name)))

    async def script(self, source: str, names: Sequence[str], arguments: Sequence[bytes | str | int]) -> Any:
        """Run a Lua script on the tenant's keys. A key it makes itself must begin with one of KEYS."""
        return await self._run("eval", source, len(names), *map(self.key, names), *arguments)

    async def _run(self, command: str, *args: Any, **options: Any) -> Any:
        with self._store.translating(f"running {command.upper()}"):
            return await getattr(self._store.client, command)(*args, **options)
