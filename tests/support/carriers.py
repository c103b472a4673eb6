"""Harnesses for the contract suite: the ledger and the streams on real stores."""

from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from hive.broker.ledger import Ledger
from hive.broker.port import Broker, Depth
from hive.broker.stream_keys import keys_of
from hive.broker.streams import Streams
from hive.settings import Crashes
from hive.store.connection import Connection
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.harness import QUEUE, assert_depth


class LedgerHarness:
    """A ledger on a database of the test's own, with a table to count effects in."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database, lease_seconds=60, crashes=Crashes())
        self.broker: Broker = self.ledger

    @classmethod
    async def over(cls, database: Database) -> "LedgerHarness":
        async with database.acquire() as connection:
            await connection.execute(
                "create table if not exists hive.effect (id bigint generated always as identity)"
            )
        return cls(database)

    async def peer(self) -> Ledger:
        return Ledger(self.database, lease_seconds=60, crashes=Crashes())

    async def pass_time(self, seconds: float) -> None:
        async with self.database.acquire() as connection:
            await connection.execute(
                "update hive.job set run_at = run_at - $1::interval, created_at = created_at - $1::interval,"
                " lease_until = lease_until - $1::interval, expires_at = expires_at - $1::interval,"
                " finished_at = finished_at - $1::interval",
                timedelta(seconds=seconds),
            )

    async def expect_depth(self, *, waiting: int, delayed: int, running: int) -> Depth:
        async with self.database.acquire() as connection:
            row = await connection.fetchrow(
                "select count(*) filter (where state = 'pending') as waiting,"
                " count(*) filter (where state in ('scheduled', 'retrying')) as delayed,"
                " count(*) filter (where state = 'running') as running from hive.job where queue = $1",
                QUEUE,
            )
        assert row is not None
        depth = await self.ledger.depth(QUEUE)
        assert (row["waiting"], row["delayed"], row["running"]) == (
            depth.waiting,
            depth.delayed,
            depth.running,
        )
        return assert_depth(depth, waiting=waiting, delayed=delayed, running=running)

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        return self.database.transaction()

    async def effect(self, connection: Connection) -> None:
        await connection.execute("insert into hive.effect default values")

    async def effects(self) -> int:
        async with self.database.acquire() as connection:
            return await connection.fetchval("select count(*) from hive.effect")


class StreamsHarness:
    """Streams on an empty Redis, and a database beside it."""

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
