"""Connections that end and servers that go away: told as what they are, and ridden out."""

import struct
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hive.embedded import EmbeddedPostgres
from hive.errors import ConfigurationError, StoreDown
from hive.events import Events, StoreChanged
from hive.settings import Embedded, Postgres
from hive.store.postgres import Database


async def test_a_connection_cut_by_the_server_is_a_store_down_and_replaced(database: Database) -> None:
    with pytest.raises(StoreDown):
        async with database.transaction() as connection:
            await connection.fetchval("select pg_terminate_backend(pg_backend_pid())")
    with pytest.raises(StoreDown):
        async with database.acquire() as connection:
            await connection.fetchval("select pg_terminate_backend(pg_backend_pid())")
    await database.ping()


def say_goodbye(protocol: Any) -> None:
    """What a server that shuts down, or pg_terminate_backend, sends to an idle connection before its end."""
    fields = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
    protocol.data_received(b"E" + struct.pack("!I", len(fields) + 4) + fields)


@pytest.mark.parametrize("way", ["acquire", "transaction"])
async def test_a_goodbye_between_two_statements_is_a_store_down(postgres_dsn: str, way: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    with suppress(StoreDown):
        async with getattr(database, way)() as connection:
            await connection.fetchval("select 1")
            say_goodbye(connection._raw._protocol)
            with pytest.raises(StoreDown):
                await connection.fetchval("select $1::int", 1)
    await database.ping()
    await database.close()


async def test_a_goodbye_before_the_commit_is_a_store_down(postgres_dsn: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    with pytest.raises(StoreDown, match="committing"):  # noqa: PT012 - it is the end that raises
        async with database.transaction() as connection:
            await connection.fetchval("select 1")
            say_goodbye(connection._raw._protocol)
    await database.ping()
    await database.close()


class Interrupted(Database):
    """Its server says goodbye to each new connection, from a moment on, before it is in use."""

    interrupted = False

    async def _initialize(self, connection: Any) -> None:
        if self.interrupted:
            say_goodbye(connection._protocol)
        await super()._initialize(connection)


async def test_a_goodbye_to_a_connection_in_the_making_is_a_store_down(postgres_dsn: str) -> None:
    database = await Interrupted.open(postgres_dsn, settings=Postgres(pool_size=2))
    database.interrupted = True
    async with database.acquire(), AsyncExitStack() as second:
        with pytest.raises(StoreDown, match="connecting"):
            await second.enter_async_context(database.acquire())
        database.interrupted = False
        await second.enter_async_context(database.acquire())
    await database.close()


@pytest.mark.parametrize("way", ["acquire", "transaction"])
async def test_a_goodbye_while_nobody_borrows_costs_one_call_at_most(postgres_dsn: str, way: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    async with getattr(database, way)() as connection:
        await connection.fetchval("select 1")
        protocol = connection._raw._protocol
    say_goodbye(protocol)
    with pytest.raises(StoreDown):
        async with getattr(database, way)() as connection:
            await connection.fetchval("select 1")
    await database.ping()
    await database.close()


@pytest.mark.parametrize("way", ["acquire", "transaction"])
async def test_a_goodbye_does_not_hide_the_error_of_the_body(postgres_dsn: str, way: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the way out is what is tested
        async with getattr(database, way)() as connection:
            say_goodbye(connection._raw._protocol)
            raise ZeroDivisionError
    await database.ping()
    await database.close()


@asynccontextmanager
async def own_server(state_dir: Path) -> AsyncGenerator[EmbeddedPostgres]:
    server = EmbeddedPostgres(state_dir, Embedded(postgres_shared_buffers_mb=16), options={"fsync": "off"})
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def test_an_outage_is_ridden_out_and_told_once(state_dir: Path) -> None:
    events = Events()
    seen: list[bool] = []
    events.subscribe(StoreChanged, lambda event: seen.append(event.up))
    async with own_server(state_dir) as server:
        database = await Database.open(server.dsn, settings=Postgres(pool_size=4), events=events)
        await server.stop()
        for _ in range(3):
            with pytest.raises(StoreDown):
                await database.ping()
        await server.start()
        await database.ping()
        await database.ping()
        assert seen == [False, True]
        await database.close()
    with pytest.raises(StoreDown):
        await Database.open(server.dsn, settings=Postgres())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda dsn: dsn.replace("//hive:", "//hive:x"), "refused the user or the password"),
        (lambda dsn: dsn.replace("//hive:", "//nobody:"), "refused the user or the password|pg_hba"),
        (lambda dsn: dsn.replace("/test_", "/none_"), "no such database"),
        (lambda dsn: dsn.replace("postgresql://", "mysql://"), "cannot be read"),
        (lambda _: "postgresql://hive:s3cret@localhost:port/x", "cannot be read"),
        (lambda _: "nonsense s3cret", "cannot be read"),
    ],
)
async def test_a_wrong_address_is_told_without_the_password(postgres_dsn: str, change, message: str) -> None:  # type: ignore[no-untyped-def]
    dsn: str = change(postgres_dsn)
    with pytest.raises(ConfigurationError, match=message) as raised:
        await Database.open(dsn, settings=Postgres())
    password = postgres_dsn.split("hive:")[1].split("@", 1)[0]
    assert password not in str(raised.value)
    assert "s3cret" not in str(raised.value)
    assert raised.value.__suppress_context__, "the traceback must not print the driver's error either"


async def test_nobody_there_is_a_store_down(tmp_path: Path) -> None:
    with pytest.raises(StoreDown):
        await Database.open("postgresql://hive:x@127.0.0.1:1/hive", settings=Postgres())
    with pytest.raises(StoreDown):
        await Database.open(f"postgresql://hive:x@/hive?host={tmp_path}", settings=Postgres())
    with pytest.raises(StoreDown):
        await Database.open("postgresql://hive:x@no-such-host.invalid/hive", settings=Postgres())
