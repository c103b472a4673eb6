"""The stream broker under the contract suite, on a real Valkey; and what only streams have."""

import pytest

from hive.broker.port import Broker, Depth
from hive.broker.stream_keys import keys_of
from hive.broker.streams import Streams
from hive.settings import Crashes
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.broker_contract import BrokerContract
from hive.testing.harness import QUEUE, assert_depth


class StreamsHarness:
    def __init__(self, store: RedisStore, database: Database) -> None:
        self.store = store
        self.database = database
        self.streams = Streams(store, database, lease_seconds=60, crashes=Crashes())
        self.broker: Broker = self.streams

    async def peer(self) -> Streams:
        return Streams(self.store, self.database, lease_seconds=60, crashes=Crashes())

    async def pass_time(self, seconds: float) -> None:
        redis, milliseconds = self.store.client, round(seconds * 1000)
        async for key in redis.scan_iter("hive:{*}:*"):
            if key.endswith((b":later", b":leases")):
                for member, _ in await redis.zrange(key, 0, -1, withscores=True):
                    await redis.zincrby(key, -milliseconds, member)
            elif b":record:" in key:
                for field in ("x", "p", "q"):
                    if await redis.hexists(key, field):
                        await redis.hincrby(key, field, -milliseconds)

    async def expect_depth(self, *, waiting: int, delayed: int, running: int) -> Depth:
        redis, keys = self.store.client, keys_of(QUEUE)
        records = redis.scan_iter(f"hive:{{{QUEUE}}}:record:*")
        states = [await redis.hget(key, "s") async for key in records]
        depth = await self.streams.depth(QUEUE)
        assert [states.count(each) for each in (b"w", b"d", b"r")] == [
            depth.waiting,
            depth.delayed,
            depth.running,
        ]
        # Nothing else is left behind: each entry belongs to a message that waits or runs.
        entries = sum([await redis.xlen(each) for each in keys.scripts[:3]])
        assert entries == depth.waiting + depth.running
        return assert_depth(depth, waiting=waiting, delayed=delayed, running=running)


@pytest.fixture
def harness(redis_store: RedisStore, database: Database) -> StreamsHarness:
    return StreamsHarness(redis_store, database)


class TestStreams(BrokerContract):
    pass
