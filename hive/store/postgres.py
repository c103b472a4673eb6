"""Postgres: a bounded pool whose connections carry nothing from one borrower to the next.

The tenant is set per transaction, by ``set_config('search_path', …, true)``: it ends with the transaction,
however that ends. Connections are replaced by age and by the number of schemas they saw (a backend keeps 0.35
MB for each).

Where ``direct_dsn`` differs from ``dsn``, the latter is taken for a transaction pooler: no prepared statement
is kept, no session setting is sent, and ``acquire()`` promises no search path (every name there has to be
qualified anyway).
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import asyncpg

from hive.clock import Clock, SystemClock
from hive.errors import ConfigurationError, StoreDown
from hive.events import Events, StoreChanged
from hive.ids import TenantId
from hive.logger import get_logger
from hive.settings import Postgres
from hive.store.address import describe, refuse_tls_mistake
from hive.store.borrowed import BROKEN, RELEASE_SECONDS, Borrowed
from hive.store.codecs import ArraysKnown, teach_json, teach_vectors
from hive.store.connection import Connection
from hive.store.growth import GrowingPool
from hive.store.tls_upgrade import retrieve_abandoned
from hive.tenancy import EXTENSION_SCHEMA, SHARED_SCHEMA, search_path_of

log = get_logger(__name__)

STORE = "postgres"
_CONNECT_SECONDS = 10.0
_LISTEN_CHECK_SECONDS = 15.0

# What asyncpg raises when the server is away, going or full rather than displeased with a statement.
_AWAY: tuple[type[BaseException], ...] = (
    OSError,
    TimeoutError,
    asyncpg.PostgresConnectionError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.DiskFullError,
    asyncpg.ReadOnlySQLTransactionError,  # a fail-over made this server a standby
)
# What it raises when the address or the password is wrong.
_REFUSED: tuple[type[BaseException], ...] = (
    asyncpg.InvalidAuthorizationSpecificationError,  # the wrong password is one of these
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
    ValueError,
)


@dataclass(slots=True, kw_only=True)
class _Wear:
    """What decides about a connection's replacement, and what it has still to learn."""

    born: float
    knows_vectors: bool
    schemas: set[str] = field(default_factory=set[str])
    clean: bool = False  # the last borrower left nothing behind, or has reset the session along the way


class _PooledConnection(ArraysKnown):
    """asyncpg's connection, with its wear."""

    wear: _Wear


class Database:
    """The way to Postgres. Make it with ``open``; close it when nothing uses it any more."""

    def __init__(
        self, dsn: str, direct_dsn: str, settings: Postgres, events: Events | None, clock: Clock
    ) -> None:
        self.dsn = dsn
        self.direct_dsn = direct_dsn or dsn
        self._settings = settings
        self._events = events
        self._clock = clock
        self._pooler = self.direct_dsn != dsn
        self._pool: GrowingPool | None = None
        self._up = True
        self._trusted = False

    @classmethod
    async def open(
        cls,
        dsn: str,
        *,
        direct_dsn: str = "",
        settings: Postgres,
        events: Events | None = None,
        clock: Clock | None = None,
    ) -> "Database":
        """Connect once, to see that the address is right.

        Raises StoreDown when the server does not answer, ConfigurationError when it refuses the address, the
        user or the password (none of which is repeated in the message).
        """
        database = cls(dsn, direct_dsn, settings, events, clock or SystemClock())
        try:
            pool = await asyncpg.create_pool(
                dsn,
                min_size=0,
                max_size=settings.pool_size,
                max_inactive_connection_lifetime=300.0,
                command_timeout=settings.call_seconds,
                statement_cache_size=0 if database._pooler else 200,
                connection_class=_PooledConnection,
                init=database._initialize,
                reset=database._reset,
                timeout=_CONNECT_SECONDS,
                server_settings=database._session_settings(),
            )
            database._pool = GrowingPool(pool)
            await database.ping()
        except BaseException as error:
            await database.close()
            if isinstance(error, _REFUSED):
                raise database._refusal(dsn, error) from None
            refuse_tls_mistake("Postgres", dsn, error)
            raise
        database._trusted = True
        return database

    async def ping(self) -> None:
        """See that the server answers; raises StoreDown if not."""
        async with self.acquire() as connection:
            try:
                await connection.fetchval(
                    "select 1", timeout=min(self._settings.call_seconds, _CONNECT_SECONDS)
                )
            except StoreDown:
                self._note(up=False)
                raise

    @asynccontextmanager
    async def acquire(self) -> AsyncGenerator[Connection]:
        """Borrow a connection in autocommit: each statement is its own transaction, in the shared schema.

        Raises StoreDown when none is free or to be had within ``call_seconds``. Cancellation gives it back.
        """
        raw, wear = await self._take()
        try:
            if not self._pooler:
                with self.translating("borrowing a connection"):
                    await raw.execute(_PLAN_FREELY.format(""))
            yield Borrowed(raw, self.translating)
        finally:
            await self._give_back(raw, wear)

    @asynccontextmanager
    async def statements(self) -> AsyncGenerator[Connection]:
        """As ``acquire``, without a word to the server before or after: for the statements of every delivery.

        Only for those that leave nothing behind in the session (no setting, lock or listener that outlives
        its statement), and whose best plan is by index whatever their arguments are: it is made once for each
        connection. Left to itself, Postgres plans the first five executions anew, a claim's for milliseconds,
        and keeps plans made for a small table, which read all of it, until it is analyzed: 20,000 jobs later
        a claim then takes seven times as long.
        """
        raw, wear = await self._take()
        try:
            yield Borrowed(raw, self.translating)
            wear.clean = True
        finally:
            await self._give_back(raw, wear)

    @asynccontextmanager
    async def transaction(self, tenant: TenantId | None = None) -> AsyncGenerator[Connection]:
        """Borrow a connection for one transaction, in the tenant's schema, or in the shared one.

        Committed at the end of the body; rolled back after an error or a cancellation. Raises StoreDown.
        """
        raw, wear = await self._take()
        try:
            connection = Borrowed(raw, self.translating)
            begin = "begin" if self._pooler else f"begin; {_PLAN_FREELY.format('local')}"
            if tenant is not None or self._pooler:
                path = _SHARED_PATH if tenant is None else search_path_of(tenant)
                wear.schemas.add(path)
                begin += f"; select set_config('search_path', '{path}', true)"
            reset = raw.get_reset_query()
            async with connection.scope(begin, f"commit; {reset}", f"rollback; {reset}"):
                yield connection
            wear.clean = True
        finally:
            await self._give_back(raw, wear)

    async def listen(self, channels: Collection[str], on_notify: Callable[[str], None]) -> None:
        """The service: call ``on_notify(channel)`` for each notification, over a connection of its own.

        Calls it once for every channel when it begins to listen, since something may have been missed before.
        Returns only by cancellation; raises StoreDown when the connection is lost or cannot be made.
        """
        raw = await self._connect_directly()
        lost = asyncio.Event()

        def ended(_: Any) -> None:
            lost.set()

        def notified(_: Any, __: int, channel: str, ___: Any) -> None:
            on_notify(channel)

        try:
            raw.add_termination_listener(ended)
            with self.translating("listening"):
                for channel in channels:
                    await raw.add_listener(channel, notified)
            for channel in channels:
                on_notify(channel)
            while True:
                with anyio.move_on_after(_LISTEN_CHECK_SECONDS):
                    await lost.wait()
                    raise StoreDown(STORE, "listening", "the connection was lost")
                # A peer that vanished without a word is only noticed by asking.
                with self.translating("listening"):
                    await raw.fetchval("select 1")
        finally:
            raw.terminate()

    async def close(self) -> None:
        """Close every connection; those still borrowed are cut after five seconds."""
        growing, self._pool = self._pool, None
        if growing is None:
            return
        with anyio.CancelScope(shield=True):
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await growing.pool.close()
            except BROKEN:
                growing.pool.terminate()

    @contextmanager
    def translating(self, doing: str) -> Generator[None]:
        """Turn errors that mean "Postgres is away" into StoreDown; leave all others."""
        try:
            yield
        except _AWAY as error:
            detail = "no answer in time" if isinstance(error, TimeoutError) else str(error)
            raise StoreDown(STORE, doing, detail) from error
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if not _lost(error):
                raise
            raise StoreDown(STORE, doing, "the connection was lost") from error

    async def _connect_directly(self) -> Any:
        try:
            with self.translating("connecting to listen"):
                return await asyncpg.connect(
                    self.direct_dsn,
                    timeout=int(_CONNECT_SECONDS),
                    command_timeout=min(self._settings.call_seconds, _CONNECT_SECONDS),
                    server_settings={"application_name": "hive listen"},
                )
        except _REFUSED as error:
            raise self._refusal(self.direct_dsn, error) from None
        except StoreDown:
            self._note(up=False)
            raise

    async def _take(self) -> tuple[Any, _Wear]:
        growing = self._pool
        if growing is None:
            raise StoreDown(STORE, "borrowing a connection", "hive has closed its connections")
        pool = growing.pool
        try:
            raw = await growing.acquire(timeout_seconds=self._settings.call_seconds)
        except TimeoutError as error:
            if pool.get_size() >= pool.get_max_size() and pool.get_idle_size() == 0:
                raise StoreDown(
                    STORE, "borrowing a connection", f"all {pool.get_max_size()} are in use"
                ) from error
            self._note(up=False)
            raise StoreDown(STORE, "connecting", "no answer in time") from error
        except _AWAY as error:
            self._note(up=False)
            raise StoreDown(STORE, "connecting", str(error)) from error
        except _REFUSED as error:
            # Once the address has proved right, a refusal is the server's trouble (a fail-over, a rotated
            # password) and may pass; at the start it is the operator's.
            if not self._trusted:
                raise
            self._note(up=False)
            raise StoreDown(STORE, "connecting", type(error).__name__) from None
        except (asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            if not _lost(error):
                raise
            self._note(up=False)
            raise StoreDown(STORE, "connecting", "the connection was lost") from error
        self._note(up=True)
        wear: _Wear = raw.wear
        if not wear.knows_vectors:
            # Made before the schema was: the type may exist by now.
            try:
                with self.translating("looking for the vector type"):
                    wear.knows_vectors = await teach_vectors(raw)
            except BaseException:
                await self._give_back(raw, wear)
                raise
        return raw, wear

    async def _give_back(self, raw: Any, wear: _Wear) -> None:
        pool = self._pool
        with anyio.CancelScope(shield=True):
            try:
                if self._used_up(wear):
                    await raw.close(timeout=RELEASE_SECONDS)
                if pool is not None:
                    await pool.release(raw, timeout_seconds=RELEASE_SECONDS)
                else:
                    raw.terminate()
            except BROKEN:
                # The body's outcome stands; the pool makes a new connection for the next borrower.
                log.debug("postgres.connection_dropped")

    def _used_up(self, wear: _Wear) -> bool:
        age = self._clock.monotonic() - wear.born
        return (
            age > self._settings.connection_age_seconds
            or len(wear.schemas) > self._settings.schemas_per_connection
        )

    async def _initialize(self, connection: Any) -> None:
        await teach_json(connection)
        connection.wear = _Wear(born=self._clock.monotonic(), knows_vectors=await teach_vectors(connection))
        if self._pool is not None:
            connection.add_termination_listener(self._pool.lost)

    async def _reset(self, connection: Any) -> None:
        """Before the next borrower: forget settings, locks, cursors and listeners."""
        if connection.wear.clean:
            connection.wear.clean = False
            return
        await connection.execute(connection.get_reset_query())

    def _session_settings(self) -> dict[str, str]:
        if self._pooler:
            return {"application_name": "hive"}
        return {
            "application_name": "hive",
            "search_path": _SHARED_PATH,
            "jit": "off",
            "plan_cache_mode": "force_generic_plan",  # these two are for `statements`
            "enable_seqscan": "off",
            "timezone": "UTC",
            # An old snapshot makes every claim four times slower; nobody may hold one by accident.
            "idle_in_transaction_session_timeout": str(
                int(max(60.0, 2 * self._settings.call_seconds) * 1000)
            ),
        }

    def _refusal(self, dsn: str, error: BaseException) -> ConfigurationError:
        where = describe(dsn)
        remedy = "check HIVE_POSTGRES__DSN and HIVE_POSTGRES__DIRECT_DSN"
        match error:
            case asyncpg.InvalidPasswordError():
                return ConfigurationError(
                    f"Postgres at {where} refused the user or the password", remedy=remedy
                )
            case asyncpg.InvalidCatalogNameError():
                return ConfigurationError(f"Postgres at {where}: there is no such database", remedy=remedy)
            case asyncpg.InvalidAuthorizationSpecificationError():
                return ConfigurationError(f"Postgres at {where}: {error}", remedy=remedy)
            case _:
                return ConfigurationError(
                    "the address of Postgres cannot be read",
                    remedy=f"{remedy}: postgresql://user:password@host:5432/database",
                )

    def _note(self, *, up: bool) -> None:
        if up == self._up:
            return
        self._up = up
        log.info("store.up" if up else "store.down", store=STORE)
        if self._events is not None:
            self._events.publish(StoreChanged(store=STORE, up=up))


def _lost(error: BaseException) -> bool:
    """Whether asyncpg says that the connection is gone.

    Once the server has said goodbye to an idle connection whose end is not here yet, asyncpg cannot switch to
    any other state.
    """
    if isinstance(error, asyncpg.InternalClientError):
        return "cannot switch to state" in str(error)
    return "closed" in str(error) or "released" in str(error)


_PLAN_FREELY = "set {0} plan_cache_mode = auto; set {0} enable_seqscan = on"
_SHARED_PATH = f"{SHARED_SCHEMA}, {EXTENSION_SCHEMA}"

retrieve_abandoned()
