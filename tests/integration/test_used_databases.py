"""The tests' own databases: what is used again is as good as new, and what is not is not used again."""

import asyncpg
import pytest

from databases import Original, PostgresServer, run
from hive.ids import TenantId
from hive.settings import Postgres
from hive.store.postgres import Database
from hive.store.tenants import Tenants

LEFTOVERS = {
    "a column": "alter table hive.job add column extra int",
    "an index": "create index extra on hive.job (task)",
    "a function": "create function hive.extra() returns int language sql as 'select 1'",
    "a changed row of the template": "update hive.tenant set weight = 7",
    "a row less": "delete from hive.tenant",
    "a sequence": "create sequence hive.extra",
}


async def test_what_a_test_adds_is_gone(postgres_server: PostgresServer) -> None:
    dsn = await postgres_server.take()
    database = await Database.open(dsn, settings=Postgres(pool_size=2))
    await Tenants(database).create(TenantId("acme"))
    async with database.transaction(TenantId("public")) as connection:
        await connection.execute("insert into connector (kind, config) values ('files', '{}')")
        await connection.execute("create table hive.mine (id int)")
    await database.close()
    assert await postgres_server.original.restore(dsn)
    restored = await Original.of(dsn)
    assert restored.contents == postgres_server.original.contents
    assert restored.catalogs == postgres_server.original.catalogs
    assert restored.sequences == postgres_server.original.sequences
    await postgres_server.drop(dsn)


@pytest.mark.parametrize("leftover", LEFTOVERS)
async def test_what_cannot_be_put_right_is_not_used_again(
    postgres_server: PostgresServer, leftover: str
) -> None:
    dsn = await postgres_server.take()
    await run(dsn, LEFTOVERS[leftover])
    assert not await postgres_server.original.restore(dsn)
    await postgres_server.drop(dsn)


async def test_what_somebody_still_uses_is_not_used_again(postgres_server: PostgresServer) -> None:
    dsn = await postgres_server.take()
    connection = await asyncpg.connect(dsn)
    assert not await postgres_server.original.restore(dsn)
    await connection.close()
    await postgres_server.drop(dsn)
