"""Tenants without work are marked, and the mark goes when work comes, whoever brings it and however late."""

import asyncio

from hive.ingest.rest import rest
from hive.store.postgres import Database
from hive.store.tenants import Tenants
from ingest_lab import Lab, Source, pages
from patience import until


async def working(database: Database) -> bool:
    return (await Tenants(database).active())["public"]


async def tick(lab: Lab) -> None:
    await lab.tick.run_once(lab.tenant, client=lab.client)


async def test_a_tick_that_finds_nothing_lets_the_tenant_rest_until_a_connector_comes(lab: Lab) -> None:
    assert await working(lab.database), "nobody has looked yet"
    await tick(lab)
    assert not await working(lab.database)
    pair = await lab.pair()
    assert await working(lab.database)
    lab.source = Source(texts=pages(1))
    await lab.ingest(pair)
    await tick(lab)
    assert await working(lab.database), "its connector will be due again"


async def test_a_paused_connector_is_no_work_and_an_attempt_under_way_is(lab: Lab) -> None:
    pair = await lab.pair()
    await lab.start(pair)
    await lab.pairs.pause(lab.tenant, pair)
    await tick(lab)
    assert await working(lab.database), "an attempt is under way"
    await lab.run_all()
    await tick(lab)
    assert not await working(lab.database)
    await lab.pairs.resume(lab.tenant, pair)
    assert await working(lab.database)


async def test_a_tenant_whose_tables_cannot_wake_it_never_rests(lab: Lab) -> None:
    """As an older hive makes them while a newer one is being rolled out."""
    async with lab.database.transaction(lab.tenant) as connection:
        await connection.execute("drop trigger works on connector_credential_pair")
    await tick(lab)
    assert await working(lab.database)


async def test_a_tenant_is_woken_by_way_of_an_index(lab: Lab) -> None:
    """Of ten thousand tenants, not by reading them all at each attempt."""
    async with lab.database.transaction() as connection:
        body = await connection.fetchval("select prosrc from pg_proc where proname = 'tenant_works'")
        assert "schema_name = own" in body
        await connection.execute("set local enable_seqscan = off")
        await connection.execute("prepare woken(text) as select from hive.tenant where schema_name = $1")
        plan = await connection.fetch("explain execute woken('tenant_public')")
    assert "tenant_schema_name_key" in str(plan)


async def test_a_connector_that_is_removed_is_work_until_it_is_gone(lab: Lab) -> None:
    pair = await lab.pair()
    await lab.pairs.remove(lab.tenant, pair, client=lab.client)
    assert await working(lab.database)
    await tick(lab)
    assert not await working(lab.database)


async def test_beat_hears_of_it_at_once_and_only_of_changes(lab: Lab) -> None:
    heard: list[str] = []
    async with asyncio.TaskGroup() as group:
        listening = group.create_task(lab.database.listen(["hive_tenants", "hive_test"], heard.append))

        async def until_heard() -> list[str]:
            """What was heard before a word of our own."""
            heard.clear()
            while "hive_test" not in heard:  # it may take a moment to listen
                async with lab.database.acquire() as connection:
                    await connection.execute("notify hive_test")
                await asyncio.sleep(0.01)
            return [channel for channel in heard if channel != "hive_test"]

        await until_heard()
        await tick(lab)
        assert await until_heard() == []
        heard.clear()
        await lab.pair("one")
        await until(lambda: heard.count("hive_tenants") == 1)
        await lab.pair("two")
        assert await until_heard() == [], "a second connector changes nothing"
        listening.cancel()


async def test_a_connector_that_is_committed_while_the_mark_is_taken_is_seen(lab: Lab) -> None:
    pair = await lab.pair()
    await lab.pairs.pause(lab.tenant, pair)
    async with asyncio.TaskGroup() as group, lab.database.transaction(lab.tenant) as connection:
        await connection.execute("update connector_credential_pair set state = 'active'")
        group.create_task(rest(lab.database, lab.tenant))
        await somebody_waits(lab.database)
    assert await working(lab.database)


async def test_a_connector_that_comes_while_the_mark_is_being_taken_sets_it_again(lab: Lab) -> None:
    pair = await lab.pair()
    await lab.pairs.pause(lab.tenant, pair)
    async with asyncio.TaskGroup() as group, lab.database.transaction(lab.tenant) as connection:
        await connection.execute("update hive.tenant set working = false")  # as ``rest`` does
        group.create_task(lab.pairs.resume(lab.tenant, pair))
        await somebody_waits(lab.database)
    assert await working(lab.database)


async def somebody_waits(database: Database) -> None:
    """Until a transaction of this database waits for a lock."""
    query = (
        "select exists (select from pg_stat_activity"
        " where datname = current_database() and wait_event_type = 'Lock')"
    )
    async with asyncio.timeout(10), database.acquire() as connection:
        while not await connection.fetchval(query):
            await asyncio.sleep(0.002)
