"""Stores reached by TLS alone: every connection that hive makes, a restart, and what is said of mistakes."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import anyio
import pytest

from foreign_stores import servers_folder
from hive.broker.ledger import Ledger
from hive.broker.port import Broker, Delivery, Settlement, Verdict
from hive.broker.streams import Streams
from hive.errors import ConfigurationError, StoreDown
from hive.ids import new_process_id
from hive.locks.redis import RedisLease
from hive.outcomes import Completed
from hive.settings import Postgres, Redis
from hive.store.backup import backup
from hive.store.migration import ensure_migrated
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.store.schema import revisions
from hive.testing.harness import QUEUE, message
from patience import until
from tls_servers import HOST, PASSWORD, Authority, TlsPostgres, TlsRedis

T = TypeVar("T")
ME = new_process_id()


@pytest.fixture(scope="module")
def folder() -> Generator[Path]:
    yield from servers_folder("tls")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder / "authority.pem")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Path:
    """An authority that has issued nothing here."""
    return Authority(folder / "stranger.pem").path


@pytest.fixture(scope="module")
def redis_server(folder: Path, authority: Authority) -> Generator[TlsRedis]:
    server = TlsRedis(folder / "redis", authority)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def postgres_server_tls(folder: Path, authority: Authority) -> Generator[TlsPostgres]:
    server = TlsPostgres(folder / "postgres", authority)
    server.start()
    yield server
    server.stop()


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """What ``call`` gives once the store is there: a server needs a moment after its start."""
    with anyio.fail_after(30):
        while True:
            try:
                return await call()
            except StoreDown:
                await anyio.sleep(0.02)


@pytest.fixture
async def store(redis_server: TlsRedis) -> AsyncGenerator[RedisStore]:
    opened = await patiently(lambda: RedisStore.open(redis_server.url(), Redis(call_seconds=5)))
    await opened.client.flushall()
    yield opened
    await opened.close()


@pytest.fixture
async def tls_database(postgres_server_tls: TlsPostgres) -> AsyncGenerator[Database]:
    """Hive's shared schema, but for the extension that this server lacks."""
    opened = await patiently(
        lambda: Database.open(postgres_server_tls.dsn(), settings=Postgres(pool_size=4, call_seconds=10))
    )
    async with opened.transaction() as connection:
        await connection.execute("drop schema if exists hive cascade; drop schema if exists hive_ext cascade")
        for revision in revisions("shared"):
            await connection.execute(revision.sql.replace("create extension if not exists vector", "--"))
    yield opened
    await opened.close()


@asynccontextmanager
async def serving(broker: Broker) -> AsyncGenerator[None]:
    async with anyio.create_task_group() as group:
        group.start_soon(broker.run)
        try:
            yield
        finally:
            group.cancel_scope.cancel()


async def one_comes_by_its_wakeup(broker: Broker) -> None:
    """A message that is sent while somebody waits for it is claimed and settled."""
    got: list[Delivery] = []

    async def receive() -> None:
        with anyio.fail_after(30):
            while not got:
                got.extend(await broker.claim(QUEUE, ME, 1))
                if not got:
                    await broker.wait(QUEUE, 10)

    sent = message()
    async with anyio.create_task_group() as group:
        group.start_soon(receive)
        await broker.publish([sent])
    assert [each.id for each in got] == [sent.id]
    verdicts = await broker.settle([Settlement(delivery=got[0], outcome=Completed())])
    assert verdicts == [Verdict.ACCEPTED]


async def listens(broker: Streams | Ledger) -> None:
    """Return once wake-ups are known to arrive; somebody has to wait for some."""
    with anyio.fail_after(60):
        while not broker.listening:
            await broker.wait(QUEUE, 0.05)


async def test_streams_live_on_tls_and_through_a_restart(
    store: RedisStore, redis_server: TlsRedis, database: Database
) -> None:
    """The common pool, the shared line of the scripts, and the blocking reader."""
    streams = Streams(store, database)
    async with serving(streams):
        await listens(streams)
        await one_comes_by_its_wakeup(streams)
        peers = await store.client.client_list()
        assert len(peers) >= 3, "the pool's, the scripts' and the reader's"
        redis_server.stop()
        await until(lambda: not streams.listening, what="the reader's loss noticed")
        with pytest.raises(StoreDown):
            await streams.publish([message()])
        redis_server.start()
        await patiently(store.ping)
        await listens(streams)
        await patiently(lambda: streams.sweep([QUEUE]))
        await one_comes_by_its_wakeup(streams)


async def test_the_leader_lease_has_a_tls_connection_of_its_own(
    store: RedisStore, redis_server: TlsRedis, database: Database
) -> None:
    lease = await RedisLease.open(
        redis_server.url(), Redis(), database, instance=uuid4(), process=ME, ttl_seconds=60
    )
    assert await lease.try_acquire() is not None
    redis_server.stop()
    with pytest.raises(StoreDown):
        await lease.renew()
    redis_server.start()
    await patiently(lease.renew)
    assert not await lease.renew(), "this Redis has forgotten it"
    assert await lease.try_acquire() is not None
    assert await lease.renew()
    await lease.release()
    await lease.close()


async def test_the_ledger_lives_on_tls_and_through_a_restart(
    tls_database: Database, postgres_server_tls: TlsPostgres
) -> None:
    """The pool, and the connection that listens."""
    ledger = Ledger(tls_database)
    async with serving(ledger):
        await listens(ledger)
        await one_comes_by_its_wakeup(ledger)
        async with tls_database.acquire() as connection:
            rows = await connection.fetch(
                "select application_name, ssl from pg_stat_activity join pg_stat_ssl using (pid)"
                " where backend_type = 'client backend'"
            )
        assert {"hive", "hive listen"} <= {row["application_name"] for row in rows}
        assert all(row["ssl"] for row in rows)
        postgres_server_tls.stop()
        await until(lambda: not ledger.listening, what="the listener's loss noticed")
        with pytest.raises(StoreDown):
            await ledger.publish([message()])
        postgres_server_tls.start()
        await patiently(tls_database.ping)
        await listens(ledger)
        await one_comes_by_its_wakeup(ledger)


async def test_migrations_and_backups_reach_a_database_by_tls(
    tls_database: Database, postgres_server_tls: TlsPostgres, tmp_path: Path
) -> None:
    written = await backup(
        tmp_path / "backup", direct_dsn=postgres_server_tls.dsn(), state_dir=tmp_path / "state"
    )
    assert (written.path / "hive.dump").stat().st_size > 0
    async with tls_database.transaction() as connection:
        await connection.execute("drop schema hive cascade")
    # As far as it comes on a server without the extension.
    with pytest.raises(ConfigurationError, match="vector"):
        await ensure_migrated(postgres_server_tls.dsn())


@pytest.fixture(scope="module")
def elsewhere(folder: Path, authority: Authority) -> Generator[tuple[TlsRedis, TlsPostgres]]:
    """Servers with a good certificate, for another host."""
    servers = (
        TlsRedis(folder / "other-redis", authority, host="elsewhere.test"),
        TlsPostgres(folder / "other-postgres", authority, host="elsewhere.test"),
    )
    for each in servers:
        each.start()
    yield servers
    for each in servers:
        each.stop()


async def refusal(call: Callable[[], Awaitable[object]]) -> str:
    """What is said of a mistake; it may not be taken for an outage, which is waited for."""
    with pytest.raises(ConfigurationError) as caught:
        await patiently(call)
    assert PASSWORD not in str(caught.value)
    cause: BaseException | None = caught.value
    while cause is not None:
        assert PASSWORD not in str(cause)
        cause = cause.__cause__
    return str(caught.value)


async def test_a_wrong_authority_is_a_mistake_that_is_named(
    redis_server: TlsRedis, postgres_server_tls: TlsPostgres, stranger: Path
) -> None:
    said = await refusal(lambda: RedisStore.open(redis_server.url(stranger), Redis()))
    assert f"Redis at {HOST}:{redis_server.port}" in said
    assert "certificate" in said
    assert "HIVE_REDIS__URL" in said
    assert "ssl_ca_certs" in said
    said = await refusal(lambda: Database.open(postgres_server_tls.dsn(stranger), settings=Postgres()))
    assert f"Postgres at {HOST}:{postgres_server_tls.port}" in said
    assert "certificate" in said
    assert "HIVE_POSTGRES__DSN" in said
    assert "sslrootcert" in said


async def test_a_certificate_for_another_host_is_a_mistake_that_is_named(
    elsewhere: tuple[TlsRedis, TlsPostgres],
) -> None:
    redis, postgres = elsewhere
    said = await refusal(lambda: RedisStore.open(redis.url(), Redis()))
    assert HOST in said.partition("certificate")[2]
    said = await refusal(lambda: Database.open(postgres.dsn(), settings=Postgres()))
    assert HOST in said.partition("certificate")[2]


async def test_an_authority_that_cannot_be_read_is_a_mistake_that_is_named(
    redis_server: TlsRedis, postgres_server_tls: TlsPostgres, folder: Path
) -> None:
    garbage = folder / "garbage.pem"
    garbage.write_text("this is no certificate")
    for path in (folder / "absent.pem", garbage):
        said = await refusal(lambda path=path: RedisStore.open(redis_server.url(path), Redis()))
        assert "HIVE_REDIS__URL" in said
        assert "ssl_ca_certs" in said
        said = await refusal(
            lambda path=path: Database.open(postgres_server_tls.dsn(path), settings=Postgres())
        )
        assert "HIVE_POSTGRES__DSN" in said
        assert "sslrootcert" in said
