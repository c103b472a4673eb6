"""A plain ``task.cancel()`` ends every call to a store: at each of its awaits, and as an answer comes in.

Handlers are cancelled in this way, once. A library that swallows it (``asyncio.wait_for`` does so
before Python 3.12, when what it waits for ends in that moment) leaves a handler running that nobody wants.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from aiohttp import web

from cancelling import Tally, cancel_everywhere
from hive.broker.port import Broker, Settlement
from hive.broker.streams import Streams
from hive.ids import DEFAULT_TENANT, TenantId, new_process_id
from hive.ingest.embedding import PROVIDER, Embedder
from hive.locks.redis import RedisLease
from hive.outcomes import Completed
from hive.providers import Providers
from hive.settings import Crashes, Embedding, Postgres, Redis
from hive.store.heartbeat import RedisHeartbeat
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.harness import QUEUE, message
from ledger_harness import LedgerHarness

ROUNDS = 10


@asynccontextmanager
async def few_connections(url: str) -> AsyncGenerator[RedisStore]:
    """A store with so few connections that one which is lost, or holds another's answer, is soon seen."""
    store = await RedisStore.open(url, Redis(pool_size=2, call_seconds=5))
    try:
        yield store
    finally:
        await store.close()


async def test_calls_to_redis(valkey_url: str) -> None:
    tally, turn = Tally(), 0
    async with few_connections(valkey_url) as store:
        tenant = store.tenant(TenantId("acme"))
        heartbeat = RedisHeartbeat(store, 60)

        async def in_order() -> None:
            """Whoever calls next gets his own answer."""
            nonlocal turn
            turn += 1
            await tenant.set("turn", str(turn))
            assert await tenant.get("turn") == str(turn).encode()
            assert await tenant.hash_all("fields") == {b"a": b"1"}

        async def several() -> None:
            async with store.client.pipeline(transaction=False) as pipe:
                await pipe.get("a").get("b").execute()

        async def connecting() -> None:
            await store.client.connection_pool.disconnect()
            await store.ping()

        await tenant.hash_set("fields", {"a": 1})
        for _ in range(ROUNDS):
            for name, call in {
                "ping": store.ping,
                "get": lambda: tenant.get("name"),
                "set": lambda: tenant.set("name", b"x" * 100_000),
                "script": lambda: tenant.script("return redis.call('GET', KEYS[1])", ["name"], []),
                "pipeline": several,
                "connecting": connecting,
                "mark": heartbeat.mark,
                "age": heartbeat.age_seconds,
            }.items():
                await cancel_everywhere(name, call, tally, after=in_order)
    assert tally.lost == []
    assert tally.cancelled >= 200


async def test_the_blocking_reader(valkey_url: str) -> None:
    tally = Tally()
    async with few_connections(valkey_url) as store:
        reader = store.blocking_client(block_seconds=0.01, connections=1)

        async def read_nothing() -> None:
            assert not await reader.xread({"nothing": "0"}, block=10)

        async def read_something() -> None:
            assert len((await reader.xread({"something": "0"}, block=10))[b"something"]) == 1

        await store.client.xadd("something", {"a": "b"})
        for _ in range(ROUNDS):
            await cancel_everywhere("read nothing", read_nothing, tally, after=read_something)
            await cancel_everywhere("read something", read_something, tally, after=read_nothing)
        await reader.aclose()
    assert tally.lost == []
    assert tally.cancelled >= 20


async def test_the_reader_of_wake_ups(valkey_url: str, database: Database) -> None:
    """A service has no end of its own: it is cancelled in one turn of the loop after the other."""
    async with few_connections(valkey_url) as store:
        streams = Streams(store, database, lease_seconds=60, crashes=Crashes())
        await streams.wait(QUEUE, 0.001)
        for turns in range(100):
            running = asyncio.ensure_future(streams.run())
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.wait([running], timeout=10)
            assert running.cancelled(), f"after {turns} turns of the loop"
        await store.ping()


async def test_the_leader_lease(valkey_url: str, database: Database) -> None:
    tally = Tally()
    lease = await RedisLease.open(
        valkey_url, Redis(), database, instance=uuid4(), process=new_process_id(), ttl_seconds=60
    )
    for _ in range(ROUNDS):
        await cancel_everywhere("acquire", lease.try_acquire, tally)
        assert await lease.try_acquire() is not None
        await cancel_everywhere("renew", lease.renew, tally)
        await cancel_everywhere("release", lease.release, tally)
    await lease.close()
    assert tally.lost == []
    assert tally.cancelled >= 50


@pytest.fixture(params=["streams", "ledger"])
async def broker(
    request: pytest.FixtureRequest, valkey_url: str, database: Database
) -> AsyncGenerator[Broker]:
    if request.param == "ledger":
        yield LedgerHarness(database).broker
        return
    async with few_connections(valkey_url) as store:
        yield Streams(store, database, lease_seconds=60, crashes=Crashes())


async def test_brokers(broker: Broker) -> None:
    tally, me = Tally(), new_process_id()

    async def publish() -> None:
        await broker.publish([message(), message()])

    async def claim() -> None:
        await broker.claim(QUEUE, me, 10)

    async def settle() -> None:
        await publish()
        held = await broker.claim(QUEUE, me, 10)
        await broker.renew(held)
        await broker.settle([Settlement(delivery=each, outcome=Completed()) for each in held])

    for _ in range(ROUNDS):
        for name, call in {"publish": publish, "claim": claim, "settle": settle}.items():
            await cancel_everywhere(name, call, tally)
    assert tally.lost == []
    assert tally.cancelled >= 100


async def test_calls_to_a_model_server() -> None:
    """aiohttp's client, over a new connection and over one that it kept; and the turn at its provider."""
    tally, providers = Tally(), Providers()

    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"index": 0, "embedding": [1.0]}]})

    app = web.Application()
    app.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    settings = Embedding(url=f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    embedder = Embedder(settings, providers=providers)

    async def embed() -> None:
        await embedder.embed(["text"])

    for _ in range(ROUNDS):
        await cancel_everywhere("embed, connecting", embed, tally, after=embedder.close)
        await cancel_everywhere("embed", embed, tally, after=embed)
    await embedder.close()
    await runner.cleanup()
    assert tally.lost == []
    assert tally.cancelled >= 50
    assert providers.state(PROVIDER).under_way == 0


@pytest.mark.parametrize(("age_seconds", "rounds"), [(1800, ROUNDS), (1e-6, 1)])
async def test_calls_to_postgres(postgres_dsn: str, age_seconds: float, rounds: int) -> None:
    """Whether connections are kept or replaced each time; none is lost, and no transaction stays open."""
    tally = Tally()
    settings = Postgres(pool_size=2, connection_age_seconds=age_seconds)
    database = await Database.open(postgres_dsn, settings=settings)

    async def acquired() -> None:
        async with database.acquire():
            pass

    async def executed() -> None:
        async with database.acquire() as connection:
            await connection.execute("select 1")
            await connection.fetchval("select $1::int", 1, timeout=5)

    async def transacted() -> None:
        async with database.transaction(DEFAULT_TENANT) as connection:
            await connection.execute("select 1")
            async with connection.transaction():
                await connection.fetch("select 1")

    async def all_there() -> None:
        async with asyncio.timeout(10), database.acquire() as one, database.acquire() as other:
            for each in (one, other):
                assert not each.is_in_transaction()
                assert await each.fetchval("select 7") == 7

    for _ in range(rounds):
        for name, call in {"acquire": acquired, "execute": executed, "transaction": transacted}.items():
            await cancel_everywhere(name, call, tally, after=all_there)
    await database.close()
    assert tally.lost == []
    assert tally.cancelled >= 10 * rounds
