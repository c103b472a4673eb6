"""The streams on a real Redis, for the contract suite; the ledger's harness stands in ``ledger_harness``."""

from struct import Struct
from typing import Final

from hive.broker.port import Broker, Depth
from hive.broker.stream_arguments import HEAD
from hive.broker.stream_keys import keys_of
from hive.broker.streams import Streams
from hive.ids import TenantId
from hive.settings import Crashes
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.harness import QUEUE, assert_depth
from ledger_harness import weigh

COUNTS: Final = Struct(">12d")
"""``counts`` of a queue's state: asleep, turn, seq, then weight, number and cost of what stands, by lane."""


class StreamsHarness:
    """Streams on an empty Redis, and a database beside it."""

    def __init__(self, store: RedisStore, database: Database) -> None:
        self.store = store
        self.database = database
        self.streams = Streams(store, database, lease_seconds=60, crashes=Crashes())
        self.broker: Broker = self.streams

    async def peer(self) -> Streams:
        return Streams(self.store, self.database, lease_seconds=60, crashes=Crashes())

    async def limited(self, most: int) -> Streams:
        return Streams(
            self.store, self.database, lease_seconds=60, crashes=Crashes(), max_depth={QUEUE: most}
        )

    async def set_weight(self, tenant: TenantId, weight: int) -> None:
        await weigh(self.database, tenant, weight)
        await self.streams.weigh_once([QUEUE])

    async def pass_time(self, seconds: float) -> None:
        redis, milliseconds = self.store.client, round(seconds * 1000)
        async for key in redis.scan_iter("hive:{*}:*"):
            if key.endswith((b":later", b":leases", b":expiries")):
                for member, _ in await redis.zrange(key, 0, -1, withscores=True):
                    await redis.zincrby(key, -milliseconds, member)
            elif key.endswith(b":record"):
                for id, record in (await redis.hgetall(key)).items():
                    fields = list(HEAD.unpack_from(record))
                    for at in (9, 10, 11):  # published, expires, since
                        fields[at] = fields[at] and fields[at] - milliseconds
                    await redis.hset(key, id, HEAD.pack(*fields) + record[HEAD.size :])
            elif key.endswith(b":slots"):
                for owner, value in (await redis.hgetall(key)).items():
                    slots, ends = value.split()
                    await redis.hset(key, owner, b"%b %d" % (slots, int(ends) - milliseconds))

    async def expect_depth(self, *, waiting: int, delayed: int, running: int) -> Depth:
        redis, keys = self.store.client, keys_of(QUEUE)
        states = [bytes(each[:1]) for each in (await redis.hgetall(keys.record)).values()]
        depth = await self.streams.depth(QUEUE)
        waits = states.count(b"w") + states.count(b"l") + states.count(b"b")
        assert [waits, states.count(b"d"), states.count(b"r")] == [
            depth.waiting,
            depth.delayed,
            depth.running,
        ]
        # Nothing else is left behind: each entry belongs to a message that stands in a window or runs.
        entries = sum([await redis.xlen(each) for each in keys.lanes])
        assert states.count(b"w") <= entries <= states.count(b"w") + depth.running
        await self.expect_shares()
        return assert_depth(depth, waiting=waiting, delayed=delayed, running=running)

    async def expect_shares(self) -> None:
        """Assert that the shares which the scripts keep equal a recount of the windows."""
        redis, keys = self.store.client, keys_of(QUEUE)
        standing: dict[bytes, int] = {}
        counts, lines = [0, 0, 0], set[bytes]()
        for record in (await redis.hgetall(keys.record)).values():
            fields = HEAD.unpack_from(record)
            rest = record[HEAD.size :]
            name = b"%d" % fields[1] + rest[1 : 1 + rest[0]]
            if fields[0] in b"wr":
                standing[name] = standing.get(name, 0) + fields[12]
                counts[fields[1] - 1] += 1
            elif fields[0] == b"l":
                lines.add(name)
        kept = {name: int(cost) for name, cost in (await redis.hgetall(keys.standing)).items()}
        assert kept == standing
        state = await redis.hgetall(keys.state)
        kept_counts = COUNTS.unpack(state.get(b"counts", bytes(COUNTS.size)))
        assert [int(kept_counts[at]) for at in (4, 7, 10)] == counts
        queued = [
            b"%d" % (at + 1) + each for at in range(3) for each in await redis.zrange(keys.queued[at], 0, -1)
        ]
        assert set(queued) >= lines
