"""Tenants: made together with their schema, found again, never guessed."""

import asyncio

import pytest

from hive.errors import Conflict, InvalidInput, TenantMissing, UnknownTenant
from hive.ids import DEFAULT_TENANT, TenantId
from hive.store.postgres import Database
from hive.store.tenants import Tenants


async def test_a_tenant_begins_with_its_search_settings(database: Database) -> None:
    tenants = Tenants(database, model="own", dimension=12, language="german")
    made = await tenants.create("acme")
    assert made == await tenants.get("acme")
    assert (made.id, made.schema_name, made.state) == ("acme", "tenant_acme", "active")
    async with database.transaction(made.id) as connection:
        row = await connection.fetchrow("select model, dimension, language, state from search_settings")
    assert row is not None
    assert dict(row) == {"model": "own", "dimension": 12, "language": "german", "state": "present"}
    assert [tenant.id for tenant in await tenants.list()] == ["acme", "public"]


async def test_bad_requests_leave_nothing(database: Database) -> None:
    tenants = Tenants(database)
    with pytest.raises(Conflict, match="exists already"):
        await tenants.create("public")
    for wrong in ("", "Acme", "a-b", "_a", "a" * 49, 'a"; drop schema hive; --'):
        with pytest.raises(InvalidInput, match="tenant"):
            await tenants.create(wrong)
    with pytest.raises(InvalidInput, match="klingon") as raised:
        await Tenants(database, language="klingon").create("acme")
    assert raised.value.field == "search.language"
    assert "german" in str(raised.value)
    assert [tenant.id for tenant in await tenants.list()] == ["public"]
    async with database.acquire() as connection:
        assert await connection.fetchval("select to_regnamespace('tenant_acme')") is None


async def test_a_schema_without_its_tenant_is_not_taken(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("create schema tenant_acme; create table tenant_acme.connector (mine int)")
    with pytest.raises(Conflict, match="without a tenant"):
        await Tenants(database).create("acme")
    with pytest.raises(UnknownTenant):
        await Tenants(database).get("acme")


async def test_the_tenant_that_was_meant(database: Database) -> None:
    tenants = Tenants(database)
    assert await tenants.resolve(None) == DEFAULT_TENANT
    assert await tenants.resolve("public") == DEFAULT_TENANT
    with pytest.raises(UnknownTenant):
        await tenants.resolve("acme")
    await tenants.create("acme")
    assert await tenants.resolve("acme") == "acme"
    with pytest.raises(TenantMissing, match="several"):
        await tenants.resolve(None)
    async with database.transaction() as connection:
        await connection.execute("delete from hive.tenant")
    with pytest.raises(TenantMissing, match="no tenant"):
        await tenants.resolve(None)


async def test_the_default_tenant_is_made_once(database: Database) -> None:
    async with database.transaction() as connection:
        await connection.execute("delete from hive.tenant; drop schema tenant_public cascade")
    await asyncio.gather(*(Tenants(database).ensure_default() for _ in range(4)))
    assert [tenant.id for tenant in await Tenants(database).list()] == [DEFAULT_TENANT]
    await Tenants(database).ensure_default()


async def test_an_install_with_other_tenants_gets_no_default_one(database: Database) -> None:
    await Tenants(database).create("acme")
    async with database.transaction() as connection:
        await connection.execute("delete from hive.tenant where id = 'public'")
    await Tenants(database).ensure_default()
    assert [tenant.id for tenant in await Tenants(database).list()] == ["acme"]


async def test_every_hive_learns_of_a_new_tenant(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    service = asyncio.ensure_future(database.listen(["hive_tenants"], heard.put_nowait))
    async with asyncio.timeout(10):
        await heard.get()
        await Tenants(database).create("acme")
        assert await heard.get() == "hive_tenants"
    service.cancel()


async def test_two_creations_of_one_tenant_make_one(database: Database) -> None:
    results = await asyncio.gather(
        *(Tenants(database).create("acme") for _ in range(3)), return_exceptions=True
    )
    assert sum(isinstance(result, Conflict) for result in results) == 2
    async with database.transaction(TenantId("acme")) as connection:
        assert await connection.fetchval("select count(*) from search_settings") == 1
