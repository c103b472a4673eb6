"""Postgres through Database: tenants apart, outages named, connections replaced."""

import asyncio
import random
import uuid
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from datetime import UTC, datetime

import asyncpg
import pytest

from hive.errors import StoreDown
from hive.events import Events, StoreChanged
from hive.ids import TenantId
from hive.settings import Postgres
from hive.store import growth
from hive.store.connection import Connection
from hive.store.growth import GrowingPool
from hive.store.postgres import Database
from hive.store.tenants import Tenants
from hive.testing.manual_clock import ManualClock

A, B = TenantId("a"), TenantId("b")


@pytest.fixture
async def two_tenants(database: Database) -> Database:
    tenants = Tenants(database)
    for tenant in (A, B):
        await tenants.create(tenant)
        async with database.transaction(tenant) as connection:
            await connection.execute(
                "insert into connector (kind, config) values ('files', $1)", {"of": tenant}
            )
    return database


async def owner(database: Database, tenant: TenantId) -> str:
    async with database.transaction(tenant) as connection:
        rows = await connection.fetch("select config from connector")
    assert len(rows) == 1
    return rows[0]["config"]["of"]


async def test_a_transaction_sees_its_tenant_alone(two_tenants: Database) -> None:
    assert await owner(two_tenants, A) == "a"
    assert await owner(two_tenants, B) == "b"


async def test_nothing_of_a_tenant_is_left_on_the_connection(postgres_dsn: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    await Tenants(database).create(A)
    async with database.transaction(A) as connection:
        assert await connection.fetchval("show search_path") == "tenant_a, hive_ext"
    async with database.acquire() as connection:
        assert await connection.fetchval("show search_path") == "hive, hive_ext"
        with pytest.raises(asyncpg.UndefinedTableError):
            await connection.fetchval("select count(*) from connector")
    async with database.transaction() as connection:
        assert await connection.fetchval("show search_path") == "hive, hive_ext"
    await database.close()


async def test_only_single_statements_keep_one_plan(postgres_dsn: str) -> None:
    """Whatever the connection was borrowed for before, and however that ended."""
    modes = "select current_setting('plan_cache_mode'), current_setting('enable_seqscan')"
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    ways: dict[str, Callable[[], AbstractAsyncContextManager[Connection]]] = {
        "statements": database.statements,
        "acquire": database.acquire,
        "transaction": database.transaction,
    }
    for before, borrowed in ways.items():
        for failing in (False, True):
            for now, borrow in ways.items():
                with pytest.raises(ZeroDivisionError) if failing else nullcontext():
                    async with borrowed():
                        if failing:
                            raise ZeroDivisionError
                async with borrow() as connection:
                    row = await connection.fetchrow(modes)
                assert row is not None
                expected = ("force_generic_plan", "off") if now == "statements" else ("auto", "on")
                assert tuple(row.values()) == expected, (before, failing, now)
    await database.close()


async def test_single_statements_that_fail_leave_nothing_behind(postgres_dsn: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    with pytest.raises(ZeroDivisionError):
        await _fail_after_a_setting(database)
    async with database.statements() as connection:
        assert await connection.fetchval("show search_path") == "hive, hive_ext"
    await database.close()


async def _fail_after_a_setting(database: Database) -> None:
    async with database.statements() as connection:
        await connection.execute("set search_path = pg_catalog")
        raise ZeroDivisionError


async def test_cancellation_never_leaks_a_tenant(postgres_dsn: str) -> None:
    """Hundreds of transactions over two tenants and two connections, cancelled anywhere."""
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=2, call_seconds=10))
    await two_tenants_in(database)
    chance = random.Random(7)
    crossings: list[object] = []
    finished = cancelled = 0

    async def work(tenant: TenantId, stay: float) -> None:
        async with database.transaction(tenant) as connection:
            seen = await connection.fetchval("select config->>'of' from connector limit 1")
            if seen != tenant:
                crossings.append((tenant, seen))
            await connection.execute("insert into connector (kind, config) values ('x', $1)", {"of": tenant})
            await connection.fetchval("select pg_sleep($1)", stay)

    async def system() -> None:
        async with database.acquire() as connection:
            path = await connection.fetchval("show search_path")
            if path != "hive, hive_ext" or connection.is_in_transaction():
                crossings.append(path)

    for _ in range(60):
        tasks = [
            asyncio.ensure_future(work(chance.choice((A, B)), chance.random() * 0.004)) for _ in range(4)
        ]
        tasks.append(asyncio.ensure_future(system()))
        await asyncio.sleep(chance.random() * 0.008)
        for task in tasks[:3]:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, asyncio.CancelledError):
                cancelled += 1
            elif isinstance(result, BaseException):
                raise result
            else:
                finished += 1
    assert not crossings
    assert finished > 20, "the test has to let some through"
    assert cancelled > 20, "and to cancel some"
    for tenant in (A, B):
        async with database.transaction(tenant) as connection:
            foreign = await connection.fetchval(
                "select count(*) from connector where config->>'of' <> $1", tenant
            )
            assert foreign == 0
    await database.close()


async def two_tenants_in(database: Database) -> None:
    for tenant in (A, B):
        await Tenants(database).create(tenant)
        async with database.transaction(tenant) as connection:
            await connection.execute(
                "insert into connector (kind, config) values ('files', $1)", {"of": tenant}
            )


async def test_an_error_rolls_back(two_tenants: Database) -> None:
    async def fail() -> None:
        async with two_tenants.transaction(A) as connection:
            await connection.execute("delete from connector")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fail()
    assert await owner(two_tenants, A) == "a"


async def test_an_ignored_failure_is_no_silent_rollback(two_tenants: Database) -> None:
    """After a failed statement a plain COMMIT rolls back and says nothing; here it says so."""

    async def ignore() -> None:
        async with two_tenants.transaction(A) as connection:
            await connection.execute("delete from connector")
            with suppress(asyncpg.UndefinedTableError):
                await connection.execute("select from no_such_table")

    with pytest.raises(asyncpg.InFailedSQLTransactionError):
        await ignore()
    assert await owner(two_tenants, A) == "a"


async def test_a_failed_commit_is_told(two_tenants: Database) -> None:
    async with two_tenants.transaction(A) as connection:
        await connection.execute("create table late (a int unique deferrable initially deferred)")
    with pytest.raises(asyncpg.UniqueViolationError):
        async with two_tenants.transaction(A) as connection:
            await connection.execute("insert into late values (1), (1)")
    assert await owner(two_tenants, A) == "a"


async def test_a_setting_of_one_borrower_is_not_the_next_ones(postgres_dsn: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1))
    for borrow in (database.transaction, database.acquire):
        async with borrow() as connection:
            await connection.execute("set search_path = public")
            await connection.execute("select pg_advisory_lock(7)")
        async with database.acquire() as connection:
            assert await connection.fetchval("show search_path") == "hive, hive_ext"
            assert await connection.fetchval("select count(*) from pg_locks where locktype = 'advisory'") == 0
    await database.close()


async def test_a_savepoint_rolls_back_alone(two_tenants: Database) -> None:
    async with two_tenants.transaction(A) as connection:
        with pytest.raises(asyncpg.UniqueViolationError):
            async with connection.transaction():
                await connection.execute(
                    "insert into document (source_id, title, link, content_hash, version, chunk_count)"
                    " select 'same', '', '', '', '{1}', 0 from generate_series(1, 2)"
                )
        await connection.execute("delete from connector")
    async with two_tenants.transaction(A) as connection:
        assert await connection.fetchval("select count(*) from connector") == 0


async def test_values_come_and_go_typed(database: Database) -> None:
    value = {"text": "ü\"'", "list": [1, 2.5, None, True], "empty": {}}
    process, instance = uuid.uuid4(), uuid.uuid4()
    async with database.transaction() as connection:
        await connection.copy_records_to_table(
            "process",
            records=[(process, instance, "host", 1, value)],
            columns=["id", "instance", "host", "pid", "slots"],
            schema_name="hive",
        )
        row = await connection.fetchrow(
            "select id, slots, started_at from hive.process where slots = $1", value
        )
        assert row is not None
        assert row["id"] == process
        assert row["slots"] == value
        assert isinstance(row["started_at"], datetime)
        assert row["started_at"].tzinfo == UTC
        distance = await connection.fetchval(
            "select $1::float4[]::hive_ext.vector <-> $2::float4[]::hive_ext.vector", [0.0, 3.0], [4.0, 0.0]
        )
        assert distance == 5


async def test_connections_are_replaced_by_age(postgres_dsn: str) -> None:
    clock = ManualClock()
    settings = Postgres(pool_size=1, connection_age_seconds=100)
    database = await Database.open(postgres_dsn, settings=settings, clock=clock)
    first = await backend(database)
    clock.advance(99)
    assert await backend(database) == first
    clock.advance(2)
    await backend(database)  # given back old, so closed
    assert await backend(database) != first
    await database.close()


async def test_connections_are_replaced_by_schemas_seen(postgres_dsn: str) -> None:
    settings = Postgres(pool_size=1, schemas_per_connection=1)
    database = await Database.open(postgres_dsn, settings=settings)
    await two_tenants_in(database)
    first = await backend(database)
    assert await owner(database, A) == "a"
    assert await owner(database, A) == "a"
    assert await backend(database) == first
    assert await owner(database, B) == "b"
    assert await backend(database) != first
    await database.close()


async def backend(database: Database) -> int:
    async with database.acquire() as connection:
        return await connection.fetchval("select pg_backend_pid()")


async def test_connections_that_ended_unused_are_made_anew_one_at_a_time(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[object] = []
    forget = GrowingPool.lost

    def seen(pool: GrowingPool, connection: object) -> None:
        lost.append(connection)
        forget(pool, connection)

    monkeypatch.setattr(GrowingPool, "lost", seen)
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=8))
    async with database.acquire(), database.acquire(), database.acquire() as connection:
        assert await connection.fetchval("select 1") == 1
    admin = await asyncpg.connect(postgres_dsn)
    others = "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    await admin.execute(f"select pg_terminate_backend(pid) {others}")
    async with asyncio.timeout(30):
        while len(lost) < 3:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(growth, "RETURN_SECONDS", 60.0)
    monkeypatch.setattr(growth, "TURN_SECONDS", 60.0)
    assert len({*await asyncio.gather(*(backend(database) for _ in range(8)))}) == 1
    await admin.close()
    await database.close()


async def test_a_busy_pool_says_so_and_counts_as_up(postgres_dsn: str) -> None:
    events = Events()
    seen: list[StoreChanged] = []
    events.subscribe(StoreChanged, seen.append)
    database = await Database.open(
        postgres_dsn, settings=Postgres(pool_size=1, call_seconds=1), events=events
    )
    async with database.acquire():
        with pytest.raises(StoreDown, match="all 1 are in use"):
            async with database.acquire():
                pass
    await database.ping()
    assert not seen
    await database.close()


async def test_a_statement_has_a_deadline(postgres_dsn: str) -> None:
    database = await Database.open(postgres_dsn, settings=Postgres(pool_size=1, call_seconds=1))
    with pytest.raises(StoreDown, match="no answer in time"):
        async with database.acquire() as connection:
            await connection.fetchval("select pg_sleep(60)")
    await database.ping()
    await database.close()


async def test_listening_wakes_and_ends_with_its_connection(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    service = asyncio.ensure_future(database.listen(["one", "two"], heard.put_nowait))
    async with asyncio.timeout(10):
        assert {await heard.get(), await heard.get()} == {"one", "two"}, (
            "something may have been missed before"
        )
        async with database.transaction() as connection:
            await connection.execute("notify two")
        assert await heard.get() == "two"
    async with database.acquire() as connection:
        await connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'hive listen'"
            " and datname = current_database()"
        )
    with pytest.raises(StoreDown, match="listening"):
        async with asyncio.timeout(10):
            await service


async def test_listening_ends_by_cancellation_without_a_trace(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    service = asyncio.ensure_future(database.listen(["one"], heard.put_nowait))
    async with asyncio.timeout(10):
        await heard.get()
    service.cancel()
    with pytest.raises(asyncio.CancelledError):
        await service
    async with asyncio.timeout(10):
        while True:
            async with database.acquire() as connection:
                left = await connection.fetchval(
                    "select count(*) from pg_stat_activity where application_name = 'hive listen'"
                    " and datname = current_database()"
                )
            if left == 0:
                return
            await asyncio.sleep(0.01)


async def test_behind_a_pooler_the_tenant_still_holds(postgres_dsn: str) -> None:
    """The addresses differ, as with a transaction pooler: no session state is relied upon."""
    database = await Database.open(
        postgres_dsn, direct_dsn=postgres_dsn + "&target_session_attrs=any", settings=Postgres(pool_size=2)
    )
    await two_tenants_in(database)
    assert await owner(database, A) == "a"
    async with database.transaction() as connection:
        assert await connection.fetchval("select count(*) from tenant") == 3
    async with database.acquire() as connection:
        assert await connection.fetchval("select count(*) from pg_prepared_statements") == 0
    await database.close()


async def test_arrays_are_known_without_asking(
    database: Database, postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = {"bool": [True], "bytea": [b"x"], "int2": [1], "int4": [2], "int8": [3], "float8": [0.5]}
    kinds |= {"timestamptz": [datetime(2026, 1, 1, tzinfo=UTC)], "uuid": [uuid.uuid4(), None]}
    alone = await asyncpg.connect(postgres_dsn)
    expected = [await alone.fetchval(f"select $1::{kind}[]", value) for kind, value in kinds.items()]
    await alone.close()

    def asked(*_: object) -> None:
        raise AssertionError("the catalogue was asked")

    monkeypatch.setattr(asyncpg.Connection, "_introspect_types", asked)
    async with database.acquire() as connection:
        for (kind, value), same in zip(kinds.items(), expected, strict=True):
            assert await connection.fetchval(f"select $1::{kind}[]", value) == value == same
        with pytest.raises(AssertionError, match="asked"):
            await connection.fetchval("select $1::numeric[]", [])
