"""What somebody else writes into a stream queue's keys, or takes out of them, stops and loses nothing."""

import random
from collections import Counter
from typing import Any

import pytest

from carriers import COUNTS, StreamsHarness
from hive.broker.port import Delivery, Message, Settlement
from hive.broker.stream_arguments import publish_arguments
from hive.broker.stream_keys import keys_of
from hive.broker.wire import encode
from hive.ids import TenantId, new_process_id
from hive.outcomes import Completed, ErrorKind, Released
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.harness import QUEUE, message

ACME = TenantId("acme")
me = new_process_id()


@pytest.fixture
def harness(redis_store: RedisStore, database: Database) -> StreamsHarness:
    return StreamsHarness(redis_store, database)


async def drained(harness: StreamsHarness) -> list[Delivery]:
    """Everything that can be had, completed; returns when sweeps and claims change nothing any more."""
    got: list[Delivery] = []
    quiet = 0
    for _ in range(400):
        await harness.streams.sweep([QUEUE])
        batch = await harness.streams.claim(QUEUE, me, 300)
        await harness.streams.settle([Settlement(delivery=each, outcome=Completed()) for each in batch])
        got += batch
        quiet = 0 if batch else quiet + 1
        if quiet > 40:
            return got
    pytest.fail("something comes back for ever")


class Meddler:
    """Writes rubbish, by chance but the same each time."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def bytes(self, most: int = 60) -> bytes:
        return self.random.randbytes(self.random.randrange(most))

    def id(self) -> bytes:
        return self.random.randbytes(16) if self.random.random() < 0.7 else self.bytes(40) or b"x"

    def record(self) -> bytes:
        """A real one with a few bytes changed, cut off or added; or none at all."""
        if self.random.random() < 0.3:
            return self.bytes(300)
        sent = message(tenant=ACME, key="k" if self.random.random() < 0.3 else None)
        record = bytearray(publish_arguments(sent, encode(sent))[4])  # type: ignore[arg-type]
        record[0] = self.random.choice(b"wldbr")
        # Not its flags nor its expiry: it would rightly be dropped as cancelled, or as expired.
        places = [at for at in range(len(record)) if at != 30 and not 47 <= at < 55]
        for _ in range(self.random.randrange(6)):
            record[self.random.choice(places)] = self.random.randrange(256)
        cut = self.random.randrange(len(record)) if self.random.random() < 0.2 else len(record)
        return bytes(record[:cut])

    def fields(self) -> dict[bytes, bytes]:
        names = [b"i", b"m", self.bytes(5)]
        self.random.shuffle(names)
        made = {name: self.bytes() for name in names[: self.random.randrange(1, 4)]}
        if b"i" in made and self.random.random() < 0.6:
            made[b"i"] = self.random.choice([self.id(), self.random.randbytes(16).hex().encode()])
        return made or {b"x": b""}


async def test_ten_thousand_pieces_of_rubbish(harness: StreamsHarness) -> None:
    """All end as dead letters with a reason; what is no message (counts, settings, indexes) is put right."""
    meddler, keys, redis = Meddler(7), keys_of(QUEUE), harness.store.client
    chance = meddler.random
    tag = keys.state.removesuffix("state")
    good = [message(tenant=chance.choice([None, ACME]), args={"n": n}) for n in range(300)]
    await harness.streams.publish(good[:100])
    rubbish = 0
    records: set[bytes] = set()
    pipe: Any = redis.pipeline(transaction=False)
    for n in range(10_000):
        match n % 10:
            case 0 | 1 | 2:
                pipe.xadd(chance.choice(keys.lanes), meddler.fields())
                rubbish += 1
            case 3 | 4 | 5:
                id = meddler.id()
                rubbish += id not in records
                records.add(id)
                pipe.hset(keys.record, id, meddler.record())
            case 6:
                pipe.zadd(tag + chance.choice(["later", "leases"]), {chance.randbytes(20): chance.random()})
                rubbish += 1
            case 7:
                tenant, lane = chance.choice(["acme", "zed", ""]), chance.randrange(3)
                pipe.zadd(f"{tag}line:{lane + 1}{tenant}", {chance.randbytes(20): chance.random()})
                pipe.zadd(keys.queued[lane], {tenant: chance.random()})
                rubbish += 1
            case 8:
                name = chance.choice(
                    ["state", "standing", "slots", "weights", "keys", "resources", "progress"]
                )
                field = chance.choice(
                    [b"counts", b"slots", b"paused", b"waiters", b"next", b"limit", b"audit"]
                )
                field = field if name == "state" else meddler.id()
                pipe.hset(
                    tag + name, field, chance.choice([meddler.bytes(20), chance.randbytes(COUNTS.size)])
                )
            case _:
                name = chance.choice(["queued:0", "queued:1", "expiries", "kinds"])
                pipe.zadd(tag + name, {meddler.id(): chance.random()})
        if n % 500 == 499:
            await pipe.execute()
            pipe = redis.pipeline(transaction=False)
    await harness.streams.publish(good[100:])
    got = await drained(harness)
    wanted = {each.id for each in good}
    assert Counter(each.id for each in got if each.id in wanted) == Counter(wanted)
    # A record with a harmless change is a message all the same.
    letters = await harness.streams.dead_letters(limit=20_000)
    assert len(letters) + len(got) - len(good) == rubbish
    assert {each.error.kind for each in letters} == {ErrorKind.UNPARSABLE}
    assert all(each.error.summary for each in letters)
    await harness.expect_depth(waiting=0, delayed=0, running=0)


async def test_keys_of_another_type_are_given_up(harness: StreamsHarness) -> None:
    keys, redis = keys_of(QUEUE), harness.store.client
    for at, key in enumerate((*keys.all, f"{keys.tag}line:2acme", f"{keys.tag}kind:acme:task")):
        await redis.delete(key)
        await redis.set(key, f"rubbish {at}")
        sent = [message(tenant=ACME) for _ in range(3)]
        await harness.streams.publish(sent)
        await harness.streams.sweep([QUEUE])
        assert len(await drained(harness)) == 3, key
    letters = await harness.streams.dead_letters(limit=1_000)
    assert len(letters) >= 20


async def test_entries_that_somebody_deletes_come_back(harness: StreamsHarness) -> None:
    sent = [message(tenant=ACME) for _ in range(100)]
    await harness.streams.publish(sent)
    keys = keys_of(QUEUE)
    await harness.store.client.xtrim(keys.lanes[1], maxlen=0, approximate=False)
    got = await drained(harness)
    assert Counter(each.id for each in got) == Counter(each.id for each in sent)
    await harness.expect_depth(waiting=0, delayed=0, running=0)


@pytest.mark.parametrize("key", ["leases", "standing", "state", "line:2acme", "queued:1", "slots"])
async def test_what_is_lost_beside_the_records_is_made_again(harness: StreamsHarness, key: str) -> None:
    """Shares, turns, lines and leases follow from the records: a sweep builds them anew."""
    await harness.streams.announce(me, {QUEUE: 10})
    sent = [message(tenant=ACME) for _ in range(60)]
    await harness.streams.publish(sent)
    held = await harness.streams.claim(QUEUE, me, 7)
    keys = keys_of(QUEUE)
    await harness.store.client.delete(keys.state.removesuffix("state") + key)
    for _ in range(10):
        await harness.streams.sweep([QUEUE])
    await harness.expect_shares()
    await harness.streams.settle([Settlement(delivery=each, outcome=Released()) for each in held])
    got = await drained(harness)
    assert Counter(each.id for each in got) == Counter(each.id for each in sent)
    await harness.expect_depth(waiting=0, delayed=0, running=0)


@pytest.mark.parametrize("counts", [None, b"", b"short", bytes(95)])
async def test_a_line_keeps_its_order_when_the_counts_are_lost(
    harness: StreamsHarness, counts: bytes | None
) -> None:
    """As in a Redis that was written before they stood together: there ``seq`` was a field of its own."""
    keys, redis = keys_of(QUEUE), harness.store.client
    sent = [message(tenant=ACME) for _ in range(120)]
    for each in sent[:60]:
        await harness.streams.publish([each])
    await redis.hdel(keys.state, "counts")
    await redis.hset(keys.state, "seq", 60)
    if counts is not None:
        await redis.hset(keys.state, "counts", counts)
    for each in sent[60:]:
        await harness.streams.publish([each])
    line = await redis.zrange(f"{keys.tag}line:2acme", 0, -1)
    assert line == [each.id.bytes for each in sent[-len(line) :]]
    assert len(line) > 60
    got = await drained(harness)
    assert {each.id for each in got} == {each.id for each in sent}


@pytest.mark.parametrize("value", [None, b"", b"x", b"nan", b"-1", b"1e99"])
@pytest.mark.parametrize("limit", [None, b"9000000000"])
async def test_fences_rise_when_the_last_one_is_lost(
    harness: StreamsHarness, value: bytes | None, limit: bytes | None
) -> None:
    keys, redis = keys_of(QUEUE), harness.store.client
    await harness.streams.publish([message()])
    (before,) = await harness.streams.claim(QUEUE, me, 1)
    await redis.hdel(keys.state, "next")
    for field, each in (("next", value), ("limit", limit)):
        if each is not None:
            await redis.hset(keys.state, field, each)
    await harness.streams.publish([message()])
    (after,) = await harness.streams.claim(QUEUE, me, 1)
    assert after.fence > before.fence


async def test_shares_are_right_after_a_restart_of_counting(harness: StreamsHarness) -> None:
    """Whatever the counts say, a sweep makes them what stands."""
    keys = keys_of(QUEUE)
    sent: list[Message] = [message(tenant=TenantId(f"t{n % 5}"), cost=1 + n % 3) for n in range(100)]
    await harness.streams.publish(sent)
    await harness.streams.claim(QUEUE, me, 20)
    redis = harness.store.client
    counts = await redis.hget(keys.state, "counts")
    assert counts is not None
    await redis.hset(keys.standing, "2t1", 999)
    await redis.hset(keys.state, "counts", COUNTS.pack(*COUNTS.unpack(counts)[:6], 77, 5, 1, 0, 0, 0))
    for _ in range(10):
        await harness.streams.sweep([QUEUE])
    await harness.expect_shares()
