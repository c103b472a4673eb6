"""The stream broker under the contract suite, on a real Valkey; and what only streams have."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio
import asyncpg
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from carriers import StreamsHarness
from hive.broker.port import Delivery, Lane, Settlement, Verdict
from hive.broker.stream_keys import GROUP, keys_of
from hive.broker.streams import Streams
from hive.broker.wire import encode
from hive.errors import StoreDown
from hive.ids import TenantId, new_process_id
from hive.outcomes import Completed, ErrorKind, ErrorRecord, Failed, Released, Retrying
from hive.settings import Postgres, Redis
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.broker_contract import BrokerContract
from hive.testing.broker_machine import BrokerMachine
from hive.testing.fairness_contract import ACME, FairnessContract
from hive.testing.harness import QUEUE, Harness, message
from hive.testing.operations_contract import OperationsContract

ERROR = ErrorRecord(kind=ErrorKind.PERMANENT, code="ValueError", summary="it did not work")


@pytest.fixture
def harness(redis_store: RedisStore, database: Database) -> StreamsHarness:
    return StreamsHarness(redis_store, database)


class TestStreams(BrokerContract):
    pass


class TestSharing(FairnessContract):
    async def test_a_resource_spans_queues(self, harness: Harness) -> None:
        """It does not: a script sees one queue, since in a cluster another's keys are on another server."""
        elsewhere = message(queue="elsewhere", tenant=ACME, resource="r")
        await harness.broker.publish([message(tenant=ACME, resource="r"), elsewhere])
        assert len(await harness.broker.claim(QUEUE, self.me, 10)) == 1
        assert len(await harness.broker.claim(elsewhere.queue, self.me, 10)) == 1


class TestOperations(OperationsContract):
    pass


class TestStreamsAlone:
    """What has no counterpart in the other carriers."""

    me = new_process_id()

    async def one(self, harness: StreamsHarness) -> Delivery:
        (delivery,) = await harness.streams.claim(QUEUE, self.me, 10)
        return delivery

    @pytest.mark.parametrize(
        "fields",
        [
            {"garbage": "x"},
            {"i": "0" * 32, "m": "not json"},
            {"i": "short", "m": "{}"},
            {"m": "{}", "i": "0" * 32},
            {"i": "0" * 32, "m": b"\xff\x00\xfe"},
            {"i": "0" * 32, "m": encode(message())},
            {"i": b"\x00" * 32, "m": b"[" * 100_000},
            {"a": b"\x00\xff" * 50_000},
        ],
    )
    async def test_an_entry_that_is_no_message_is_dead_lettered(
        self, harness: StreamsHarness, fields: dict[Any, Any]
    ) -> None:
        await harness.store.client.xadd(keys_of(QUEUE).lanes[1], fields)
        good = message()
        await harness.streams.publish([good])
        assert (await self.one(harness)).id == good.id
        (letter,) = await harness.streams.dead_letters()
        assert (letter.error.kind, letter.args, letter.queue) == (ErrorKind.UNPARSABLE, None, QUEUE)
        async with harness.database.acquire() as connection:
            raw = await connection.fetchval("select raw from hive.dead_letter")
        assert raw
        assert len(raw) <= 64 * 1024
        await harness.expect_depth(waiting=0, delayed=0, running=1)
        assert await harness.streams.replay([letter.id]) == 0
        assert await harness.streams.purge([letter.id]) == 1

    async def test_many_bad_entries_hold_up_nobody(self, harness: StreamsHarness) -> None:
        pipe = harness.store.client.pipeline(transaction=False)
        for n in range(1_000):
            pipe.xadd(keys_of(QUEUE).lanes[n % 3], {"i": f"{n:032x}", "m": os.urandom(n % 50)})
        await pipe.execute()
        good = [message() for _ in range(20)]
        await harness.streams.publish(good)
        got: list[Delivery] = []
        for _ in range(100):
            got += await harness.streams.claim(QUEUE, self.me, 50)
        assert {each.id for each in got} == {each.id for each in good}
        assert len(await harness.streams.dead_letters(limit=2_000)) == 1_000

    async def test_a_well_formed_foreign_entry_is_a_message(self, harness: StreamsHarness) -> None:
        sent = message()
        await harness.store.client.xadd(keys_of(QUEUE).lanes[1], {"i": sent.id.hex, "m": encode(sent)})
        got = await self.one(harness)
        assert got.id == sent.id
        verdicts = await harness.streams.settle(
            [Settlement(delivery=got, outcome=Retrying(delay_seconds=0, error=ERROR))]
        )
        assert verdicts == [Verdict.ACCEPTED]

    async def test_a_wiped_redis_is_healed(self, harness: StreamsHarness) -> None:
        await harness.streams.publish([message() for _ in range(3)])
        before = await harness.streams.claim(QUEUE, self.me, 2)
        await harness.store.client.flushall()
        assert await harness.streams.claim(QUEUE, self.me, 1) == []
        await harness.streams.publish([message()])
        after = await self.one(harness)
        assert after.fence > max(each.fence for each in before)
        assert list(await harness.streams.renew(before)) == before
        verdicts = await harness.streams.settle(
            [Settlement(delivery=each, outcome=Completed()) for each in (*before, after)]
        )
        assert verdicts == [Verdict.STALE, Verdict.STALE, Verdict.ACCEPTED]
        await harness.streams.sweep([QUEUE])
        await harness.streams.publish([message()])
        assert await harness.streams.owner_died((await self.one(harness)).owner) == 1
        await harness.expect_depth(waiting=1, delayed=0, running=0)

    async def test_the_servers_functions_may_be_lost(self, harness: StreamsHarness) -> None:
        """Several processes notice at once; a library of another version is left alone."""
        redis = harness.store.client
        await redis.execute_command("FUNCTION", "FLUSH")
        other = "#!lua name=hive_other\nredis.register_function('hive_other_publish', function() end)"
        await redis.execute_command("FUNCTION", "LOAD", other)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(harness.streams.publish, [message()])
        assert len(await harness.streams.claim(QUEUE, self.me, 10)) == 5
        assert len(await redis.execute_command("FUNCTION", "LIST")) == 2
        await redis.execute_command("FUNCTION", "FLUSH")
        await self.one_after_another(harness.streams)

    async def test_a_user_may_have_no_functions(self, harness: StreamsHarness) -> None:
        redis = harness.store.client
        await redis.execute_command("FUNCTION", "FLUSH")
        async with self.without_functions(harness) as store:
            await self.one_after_another(Streams(store, harness.database))
            assert await redis.execute_command("FUNCTION", "LIST") == []

    @asynccontextmanager
    async def without_functions(self, harness: StreamsHarness) -> AsyncGenerator[RedisStore]:
        """The same server, for a user that may run no functions."""
        redis = harness.store.client
        await redis.execute_command(
            *("ACL", "SETUSER", "evaluates", "on", ">secret", "~*", "+@all", "-function", "-fcall")
        )
        place = urlsplit(harness.store.url)
        url = urlunsplit(place._replace(netloc=f"evaluates:secret@{place.netloc.rpartition('@')[2]}"))
        store = await RedisStore.open(url, Redis())
        try:
            yield store
        finally:
            await store.close()
            await redis.execute_command("ACL", "DELUSER", "evaluates")

    @pytest.mark.parametrize("functions", ["loaded", "lost", "refused"])
    async def test_full_memory_stops_only_what_needs_more(
        self, harness: StreamsHarness, functions: str
    ) -> None:
        """A process that starts then works off what there is: that is what makes room."""
        redis = harness.store.client
        await harness.streams.publish([message() for _ in range(3)])
        await harness.streams.claim(QUEUE, new_process_id(), 1)
        if functions != "loaded":
            await redis.execute_command("FUNCTION", "FLUSH")
        async with AsyncExitStack() as stack:
            store = harness.store
            if functions == "refused":
                store = await stack.enter_async_context(self.without_functions(harness))
            fresh = Streams(store, harness.database, lease_seconds=0.2)
            await redis.config_set("maxmemory", "1")
            stack.push_async_callback(redis.config_set, "maxmemory", "0")
            with pytest.raises(StoreDown):
                await fresh.publish([message()])
            await fresh.announce(self.me, {QUEUE: 2})
            first, second = await fresh.claim(QUEUE, self.me, 2)
            assert await fresh.renew([first, second]) == []
            verdicts = await fresh.settle([Settlement(delivery=first, outcome=Completed())])
            assert verdicts == [Verdict.ACCEPTED]
            while not (expired := (await fresh.sweep([QUEUE])).expired):
                await asyncio.sleep(0.01)
            assert expired == 1
            assert await fresh.owner_died(self.me) == 0
            await redis.config_set("maxmemory", "0")
            await fresh.publish([message()])
        await harness.expect_depth(waiting=2, delayed=0, running=1)

    async def one_after_another(self, streams: Streams) -> None:
        await streams.publish([message()])
        (first,) = await streams.claim(QUEUE, self.me, 10)
        sent = message(key="k")
        await streams.publish([sent])
        (second,) = await streams.claim(QUEUE, self.me, 10)
        assert second.id == sent.id
        verdicts = await streams.settle(
            [Settlement(delivery=each, outcome=Completed()) for each in (first, second)]
        )
        assert verdicts == [Verdict.ACCEPTED] * 2

    async def test_blocks_of_fences_rise(self, harness: StreamsHarness) -> None:
        fences: list[int] = []
        for _ in range(3):
            await harness.streams.publish([message()])
            fences.append((await self.one(harness)).fence)
            await harness.store.client.hset(keys_of(QUEUE).state, "next", 10**6 * len(fences) - 1)
        assert fences == sorted(set(fences))
        assert fences[-1] > 2_000_000

    async def test_an_expired_tick_is_dropped_and_counted(self, harness: StreamsHarness) -> None:
        await harness.streams.publish([message(key="k", expires_seconds=20)])
        await harness.pass_time(21)
        # The next tick takes its place instead of being held off by it.
        (again,) = await harness.streams.publish([message(key="k", expires_seconds=20)])
        assert not again.duplicate
        assert (await self.one(harness)).id == again.id
        assert await harness.streams.expired(QUEUE) == 1
        await harness.streams.publish(
            [message(expires_seconds=20), message(expires_seconds=20, delay_seconds=21)]
        )
        await harness.pass_time(22)
        assert await harness.streams.claim(QUEUE, self.me, 5) == []
        assert await harness.streams.expired(QUEUE) == 3
        assert await harness.streams.dead_letters() == []
        await harness.expect_depth(waiting=0, delayed=0, running=1)

    async def test_consumers_of_the_dead_are_removed(self, harness: StreamsHarness) -> None:
        await harness.streams.publish([message()])
        await self.one(harness)
        lane = keys_of(QUEUE).lanes[1]
        assert len(await harness.store.client.xinfo_consumers(lane, GROUP)) == 1
        await harness.streams.owner_died(self.me)
        assert len(await harness.store.client.xinfo_consumers(lane, GROUP)) == 0
        assert len(await harness.streams.claim(QUEUE, new_process_id(), 5)) == 1

    async def test_nothing_is_left_of_what_ended(self, harness: StreamsHarness) -> None:
        await harness.streams.publish([message(key="k"), message(delay_seconds=1), message(lane=Lane.LOW)])
        await harness.pass_time(2)
        for outcome in (Retrying(delay_seconds=0, error=ERROR), Released(), Failed(error=ERROR)):
            got = await harness.streams.claim(QUEUE, self.me, 5)
            assert len(got) == 3
            await harness.streams.progress(got[0], stage="s", done=1, total=2)
            await harness.streams.settle([Settlement(delivery=each, outcome=outcome) for each in got])
            await harness.streams.sweep([QUEUE])
        for _ in range(10):
            await harness.streams.sweep([QUEUE])
        left = {key.decode().rsplit(":", 2)[-1] async for key in harness.store.client.scan_iter("hive:{*}:*")}
        assert left <= {"0", "1", "2", "state", "wake", "dead", "lane"}
        keys = keys_of(QUEUE)
        for key in (*keys.lanes, keys.dead):
            assert await harness.store.client.xlen(key) == 0

    async def test_a_dead_letter_is_written_before_it_leaves_redis(self, harness: StreamsHarness) -> None:
        await harness.streams.publish([message()])
        got = await self.one(harness)
        async with harness.database.acquire() as connection:
            await connection.execute("alter table hive.dead_letter rename to away")
            with pytest.raises(asyncpg.UndefinedTableError):
                await harness.streams.settle([Settlement(delivery=got, outcome=Failed(error=ERROR))])
            dead = keys_of(QUEUE).dead
            assert await harness.store.client.xlen(dead) == 1
            await connection.execute("alter table hive.away rename to dead_letter")
        # Any process finishes it.
        await (await harness.peer()).sweep([QUEUE])
        assert [each.id for each in await harness.streams.dead_letters()] == [got.id]
        assert await harness.store.client.xlen(dead) == 0

    async def test_poison_found_by_a_sweep_keeps_its_arguments(self, harness: StreamsHarness) -> None:
        await harness.streams.publish([message(args={"n": 1}, tenant=TenantId("acme"))])
        for _ in range(10):
            await harness.streams.mark_started([await self.one(harness)])
            await harness.streams.owner_died(self.me)
        (letter,) = await harness.streams.dead_letters()
        assert (letter.args, letter.tenant, letter.error.kind) == ({"n": 1}, "acme", ErrorKind.POISON)
        assert await harness.streams.replay([letter.id]) == 1
        assert (await self.one(harness)).args == {"n": 1}

    async def test_an_application_transaction_carries_its_messages(self, harness: StreamsHarness) -> None:
        lost, sent = message(), message(args={"n": 1}, delay_seconds=30, expires_seconds=90, key="k")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the transaction is what is tested
            async with harness.database.transaction() as connection:
                await harness.streams.publish([lost], connection=connection)
                raise ZeroDivisionError
        async with harness.database.transaction() as connection:
            await harness.streams.publish([sent], connection=connection)
            assert await harness.streams.relay_once() == 0
        assert await harness.streams.relay_once() == 1
        assert await harness.streams.relay_once() == 0
        await harness.expect_depth(waiting=0, delayed=1, running=0)
        await harness.pass_time(31)
        got = await self.one(harness)
        assert (got.id, got.args) == (sent.id, {"n": 1})

    async def test_what_expired_in_the_outbox_is_not_sent(self, harness: StreamsHarness) -> None:
        async with harness.database.transaction() as connection:
            await harness.streams.publish([message(expires_seconds=10), message()], connection=connection)
            await connection.execute("update hive.outbox set created_at = created_at - interval '11 seconds'")
        assert await harness.streams.relay_once() == 2
        await harness.expect_depth(waiting=1, delayed=0, running=0)

    async def test_a_bad_row_in_the_outbox_is_dead_lettered(self, harness: StreamsHarness) -> None:
        async with harness.database.acquire() as connection:
            await connection.execute(
                "insert into hive.outbox (id, queue, message) values (gen_random_uuid(), 'work', '[1]')"
            )
        assert await harness.streams.relay_once() == 1
        (letter,) = await harness.streams.dead_letters()
        assert letter.error.kind is ErrorKind.UNPARSABLE

    async def test_the_outbox_is_relayed_in_the_background(self, harness: StreamsHarness) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(harness.streams.run)
            async with harness.database.transaction() as connection:
                await harness.streams.publish([message()], connection=connection)
            with anyio.fail_after(20):
                while not (await harness.streams.depth(QUEUE)).waiting:
                    await harness.streams.wait(QUEUE, 0.05)
            group.cancel_scope.cancel()

    async def test_relays_of_two_processes_send_each_once(self, harness: StreamsHarness) -> None:
        async with harness.database.transaction() as connection:
            await harness.streams.publish([message() for _ in range(900)], connection=connection)
        peer = await harness.peer()
        sent = await asyncio.gather(*(each.relay_once() for each in (harness.streams, peer)))
        while more := await peer.relay_once():
            sent.append(more)
        assert sum(sent) == 900
        await harness.expect_depth(waiting=900, delayed=0, running=0)


def test_the_machine_finds_nothing(valkey_url: str, postgres_dsn: str) -> None:
    class StreamsMachine(BrokerMachine):
        fair_claims = False
        failed_when_expired = False

        async def start(self) -> StreamsHarness:
            database = await Database.open(postgres_dsn, settings=Postgres(pool_size=2))
            async with database.acquire() as connection:
                await connection.execute("truncate hive.dead_letter")
            store = await RedisStore.open(valkey_url, Redis())
            await store.client.flushall()
            return StreamsHarness(store, database)

        async def stop(self) -> None:
            assert isinstance(self.harness, StreamsHarness)
            await self.harness.store.close()
            await self.harness.database.close()

    run_state_machine_as_test(
        StreamsMachine,
        settings=settings(max_examples=15, stateful_step_count=30, deadline=None, database=None),
    )
