"""Redis through RedisStore: deadlines, outages, tenants apart."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from hive.embedded import EmbeddedValkey
from hive.errors import ConfigurationError, StoreDown
from hive.events import Events, StoreChanged
from hive.ids import TenantId
from hive.settings import Embedded, Redis
from hive.store.redis import RedisStore


async def test_tenants_keep_to_their_keys(redis_store: RedisStore) -> None:
    a, b = redis_store.tenant(TenantId("a")), redis_store.tenant(TenantId("b"))
    assert await a.set("name", b"of a")
    assert not await a.set("name", b"again", absent=True)
    assert await b.get("name") is None
    await b.set_add("members", "one", "two")
    await b.hash_set("hash", {"field": 1})
    assert await b.increment("count", 3) == 3
    assert await a.set_members("members") == frozenset()
    assert await a.delete("members", "hash", "count") == 0
    assert await b.set_members("members") == {b"one", b"two"}
    assert await b.hash_all("hash") == {b"field": b"1"}
    assert await b.script("return redis.call('GET', KEYS[1])", ["count"], []) == b"3"
    assert await b.set_remove("members", "one") == 1
    assert await b.expire("count", 100)
    assert await b.exists("count")
    keys = {key async for key in redis_store.client.scan_iter()}
    assert all(key.startswith((b"hive:t:a:", b"hive:t:b:")) for key in keys), keys


def test_a_tenant_client_offers_no_other_command(redis_store: RedisStore) -> None:
    tenant = redis_store.tenant(TenantId("a"))
    for command in ("execute_command", "flushall", "keys", "scan", "pipeline", "client"):
        assert not hasattr(tenant, command)


async def test_a_key_ends(redis_store: RedisStore) -> None:
    tenant = redis_store.tenant(TenantId("a"))
    await tenant.set("short", b"x", seconds=0.01)
    async with asyncio.timeout(5):
        while await tenant.exists("short"):
            await asyncio.sleep(0.005)


async def test_an_outage_is_ridden_out_and_told_once(state_dir: Path) -> None:
    events = Events()
    seen: list[bool] = []
    events.subscribe(StoreChanged, lambda event: seen.append(event.up))
    server = EmbeddedValkey(state_dir, Embedded())
    store = await RedisStore.open(await server.start(), Redis(), events)
    try:
        await server.stop()
        for _ in range(3):
            with pytest.raises(StoreDown):
                await store.ping()
        await server.start()
        await store.ping()
        assert seen == [False, True]
    finally:
        await store.close()
        await server.stop()


async def test_a_frozen_server_is_a_store_down_within_the_deadline(state_dir: Path) -> None:
    server = EmbeddedValkey(state_dir, Embedded())
    store = await RedisStore.open(await server.start(), Redis(call_seconds=0.3))
    assert server.pid is not None
    try:
        os.kill(server.pid, signal.SIGSTOP)
        async with asyncio.timeout(2):
            with pytest.raises(StoreDown):
                await store.ping()
        os.kill(server.pid, signal.SIGCONT)
        async with asyncio.timeout(5):
            await store.ping()
    finally:
        os.kill(server.pid, signal.SIGCONT)
        await store.close()
        await server.stop()


async def test_a_busy_pool_says_so_and_counts_as_up(valkey_url: str) -> None:
    events = Events()
    seen: list[bool] = []
    events.subscribe(StoreChanged, lambda event: seen.append(event.up))
    store = await RedisStore.open(valkey_url, Redis(pool_size=1, call_seconds=0.2), events)
    connection = await store.client.connection_pool.get_connection()
    with pytest.raises(StoreDown, match="all 1 connections are in use"):
        await store.ping()
    await store.client.connection_pool.release(connection)
    await store.ping()
    assert not seen
    await store.close()


async def test_a_blocking_reader_outlasts_the_usual_deadline(valkey_url: str) -> None:
    store = await RedisStore.open(valkey_url, Redis(call_seconds=0.1))
    reader = store.blocking_client(block_seconds=0.5)
    assert await reader.blpop(["nothing"], timeout=0.4) is None
    waiting = asyncio.ensure_future(reader.blpop(["something"], timeout=5))
    await store.client.lpush("something", "x")
    async with asyncio.timeout(5):
        assert await waiting is not None
    await reader.aclose()
    await store.close()


async def test_a_wrong_address_is_told_without_the_password(valkey_url: str) -> None:
    password = valkey_url.split(":")[2].split("@", maxsplit=1)[0]
    for url, message in [
        (valkey_url.replace(password, "wr0ng"), "refused the user or the password"),
        (valkey_url.replace(f":{password}@", ""), "refused the user or the password"),
        ("http://:wr0ng@localhost", "cannot be read"),
        ("redis://:wr0ng@localhost:port", "cannot be read"),
    ]:
        with pytest.raises(ConfigurationError, match=message) as raised:
            await RedisStore.open(url, Redis())
        assert "wr0ng" not in str(raised.value)
        assert password not in str(raised.value)
    with pytest.raises(StoreDown):
        await RedisStore.open("redis://127.0.0.1:1", Redis())
