"""Redis through RedisStore: deadlines, outages, tenants apart."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from uuid import uuid4

import pytest

from hive.broker.streams import Streams
from hive.embedded import EmbeddedValkey
from hive.errors import ConfigurationError, StoreDown
from hive.events import Events, StoreChanged
from hive.ids import TenantId, new_process_id
from hive.locks.redis import RedisLease
from hive.settings import Crashes, Embedded, Redis
from hive.store.heartbeat import RedisHeartbeat
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.harness import QUEUE
from hive.testing.harness import message as made


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
    async with asyncio.timeout(20):
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


async def test_a_frozen_server_is_a_store_down_within_one_deadline(
    state_dir: Path, database: Database
) -> None:
    """Whatever is called, over a connection that stands or one that is to be made."""
    server = EmbeddedValkey(state_dir, Embedded())
    url = await server.start()
    settings = Redis(call_seconds=2)
    store = await RedisStore.open(url, settings)
    streams = Streams(store, database, lease_seconds=60, crashes=Crashes())
    lease = await RedisLease.open(
        url, settings, database, instance=uuid4(), process=new_process_id(), ttl_seconds=60
    )
    reader = store.blocking_client(block_seconds=0.1, connections=1)

    async def pipeline() -> None:
        with store.translating("several"):
            await store.client.pipeline().get("a").get("b").execute()

    async def read() -> None:
        with store.translating("reading"):
            await reader.xread({"nothing": "0"}, block=100)

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "ping": store.ping,
        "get": lambda: store.tenant(TenantId("a")).get("name"),
        "script": lambda: store.tenant(TenantId("a")).script("return 1", [], []),
        "pipeline": pipeline,
        "read": read,
        "mark": RedisHeartbeat(store, 60).mark,
        "renew": lease.renew,
        "publish": lambda: streams.publish([made()]),
        "claim": lambda: streams.claim(QUEUE, new_process_id(), 1),
        "paused": streams.paused,
    }

    async def seconds_to_notice(name: str, call: Callable[[], Awaitable[object]]) -> tuple[float, str]:
        began = asyncio.get_running_loop().time()
        with pytest.raises(StoreDown):
            await call()
        return asyncio.get_running_loop().time() - began, name

    assert server.pid is not None
    try:
        for connected in (True, False):
            await asyncio.gather(*(call() for call in calls.values()))
            if not connected:
                for client in (store.client, reader):
                    await client.connection_pool.disconnect()
            os.kill(server.pid, signal.SIGSTOP)
            took = await asyncio.gather(*(seconds_to_notice(*each) for each in calls.items()))
            os.kill(server.pid, signal.SIGCONT)
            assert max(took)[0] < 2 * settings.call_seconds - 0.1, f"connected: {connected}"
        os.kill(server.pid, signal.SIGSTOP)
        with pytest.raises(StoreDown):
            async with asyncio.timeout(2 * settings.call_seconds - 0.1):
                await RedisStore.open(url, settings)
    finally:
        os.kill(server.pid, signal.SIGCONT)
        await reader.aclose()
        await lease.close()
        await store.close()
        await server.stop()


async def test_a_cancelled_call_takes_no_turn_with_it(valkey_url: str) -> None:
    """The connection it was about to get goes to the next in line, at once."""
    store = await RedisStore.open(valkey_url, Redis(pool_size=1, call_seconds=60))
    connection = await store.client.connection_pool.get_connection()
    first, second = asyncio.ensure_future(store.ping()), asyncio.ensure_future(store.ping())
    for _ in range(5):
        await asyncio.sleep(0)
    await store.client.connection_pool.release(connection)
    first.cancel()
    async with asyncio.timeout(20):
        await second
    assert first.cancelled()
    await store.close()


async def test_what_has_no_deadline_is_not_offered(redis_store: RedisStore) -> None:
    for offer in (redis_store.client.pubsub, redis_store.client.monitor):
        with pytest.raises(NotImplementedError):
            offer()


async def test_a_busy_pool_says_so_and_counts_as_up(valkey_url: str) -> None:
    events = Events()
    seen: list[bool] = []
    events.subscribe(StoreChanged, lambda event: seen.append(event.up))
    store = await RedisStore.open(valkey_url, Redis(pool_size=1, call_seconds=1), events)
    connection = await store.client.connection_pool.get_connection()
    with pytest.raises(StoreDown, match="all 1 connections are in use"):
        await store.ping()
    await store.client.connection_pool.release(connection)
    await store.ping()
    assert not seen
    await store.close()


async def test_a_blocking_reader_outlasts_the_usual_deadline(valkey_url: str) -> None:
    store = await RedisStore.open(valkey_url, Redis(call_seconds=1))
    reader = store.blocking_client(block_seconds=20)
    assert await reader.blpop(["nothing"], timeout=1.5) is None
    waiting = asyncio.ensure_future(reader.blpop(["something"], timeout=20))
    await store.client.lpush("something", "x")
    async with asyncio.timeout(20):
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
