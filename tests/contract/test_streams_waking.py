"""How a consumer of a stream queue learns of messages, and rides out what happens to its connections."""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Thread

import anyio
import pytest

from carriers import StreamsHarness
from hive.broker.port import Delivery, Settlement, Verdict
from hive.broker.stream_arguments import publish_arguments
from hive.broker.stream_keys import keys_of
from hive.broker.stream_scripts import StreamScripts
from hive.broker.streams import Streams
from hive.clock import SystemClock
from hive.embedded import EmbeddedValkey
from hive.errors import StoreDown
from hive.ids import ProcessId, new_process_id
from hive.outcomes import Completed, ErrorKind
from hive.settings import Crashes, Embedded, Redis
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.fault_proxy import FaultProxy
from hive.testing.harness import QUEUE, message


@pytest.fixture
def harness(redis_store: RedisStore, database: Database) -> StreamsHarness:
    return StreamsHarness(redis_store, database)


class Hand:
    """Takes what comes for one consumer of the queue, as a pool does; or, if not ``open``, takes nothing."""

    def __init__(self, streams: Streams, owner: ProcessId, *, open: bool = True) -> None:
        self.open = open
        self.offers = 0
        self._taken: list[tuple[Delivery, float]] = []
        self._came = asyncio.Event()
        streams.receive(QUEUE, owner, self._take)

    def _take(self, delivery: Delivery, since: float) -> bool:
        self.offers += 1
        if self.open:
            self._taken.append((delivery, since))
            self._came.set()
        return self.open

    async def taken(self) -> tuple[Delivery, float]:
        """The next one, and after what moment its lease began."""
        while not self._taken:
            self._came.clear()
            await self._came.wait()
        return self._taken.pop(0)


@asynccontextmanager
async def listening(streams: Streams) -> AsyncGenerator[None]:
    """``streams`` at work and reading wake-ups, for thirty seconds at the most."""
    async with anyio.create_task_group() as group:
        group.start_soon(streams.run)
        with anyio.fail_after(30):
            while not streams.listening:
                await streams.wait(QUEUE, 0.05)
            yield
        group.cancel_scope.cancel()


async def commands_of(harness: StreamsHarness, name: str) -> int:
    """How often the server was given a command."""
    stats = await harness.store.client.info("commandstats")
    return int(stats.get(f"cmdstat_{name}", {}).get("calls", 0))


class TestWaking:
    me = new_process_id()

    async def test_another_process_is_woken_at_once(
        self, harness: StreamsHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hive.broker.stream_wakeups.SLOW_POLL_SECONDS", 60.0)
        peer = await harness.peer()
        async with listening(harness.streams):
            # Now the poll is a minute away: only a wake-up comes in time.
            for _ in range(5):
                assert await harness.streams.claim(QUEUE, self.me, 1) == []
                await harness.streams.wait(QUEUE, 0.05)
                await peer.publish([message()])
                await harness.streams.wait(QUEUE, 60)
                for each in await harness.streams.claim(QUEUE, self.me, 1):
                    await harness.streams.settle([Settlement(delivery=each, outcome=Completed())])

    async def test_a_lone_message_comes_with_its_wake_up(self, harness: StreamsHarness) -> None:
        """Given to one that waits by the publish itself, and handed over as it is read."""
        peer = await harness.peer()
        clock = SystemClock().monotonic
        hand = Hand(harness.streams, self.me)
        async with listening(harness.streams):
            fence = 0
            for resource in (None, "r", "r"):
                assert await harness.streams.claim(QUEUE, self.me, 1) == []
                sent = message(key="k", resource=resource)
                await peer.publish([sent])
                await harness.expect_depth(waiting=0, delayed=0, running=1)
                published = clock()
                got, since = await hand.taken()
                assert (got.id, got.attempt, got.owner) == (sent.id, 1, self.me)
                assert since < published
                assert got.fence > fence
                fence = got.fence
                # Whoever asks meanwhile is not given it again.
                assert await harness.streams.claim(QUEUE, self.me, 1) == []
                assert await harness.streams.settle([Settlement(delivery=got, outcome=Completed())]) == [
                    Verdict.ACCEPTED
                ]
        assert hand.offers == 3

    async def test_each_of_several_that_wait_is_given_one(self, harness: StreamsHarness) -> None:
        """The last to ask first; who has asked for nothing is given nothing."""
        peer, others = await harness.peer(), [new_process_id() for _ in range(3)]
        hands = [Hand(harness.streams, owner) for owner in (self.me, *others)]
        async with listening(harness.streams):
            for owner in (self.me, *others, self.me):
                assert await harness.streams.claim(QUEUE, owner, 1) == []
            await harness.streams.withdraw(QUEUE, others[1])
            for hand in (hands[0], hands[3], hands[1]):
                sent = message()
                await peer.publish([sent])
                got, _ = await hand.taken()
                assert got.id == sent.id
            await peer.publish([message()])
            await harness.expect_depth(waiting=1, delayed=0, running=3)
        assert [hand.offers for hand in hands] == [1, 1, 0, 1]

    async def test_who_takes_nothing_is_woken_to_claim(self, harness: StreamsHarness) -> None:
        peer = await harness.peer()
        async with listening(harness.streams):
            for takes_no_more in (False, True):
                if takes_no_more:
                    Hand(harness.streams, self.me)
                    harness.streams.receive(QUEUE, self.me, None)
                assert await harness.streams.claim(QUEUE, self.me, 1) == []
                await peer.publish([message()])
                await harness.expect_depth(waiting=1, delayed=0, running=0)
                await harness.streams.wait(QUEUE, 10)
                (got,) = await harness.streams.claim(QUEUE, self.me, 1)
                await harness.streams.settle([Settlement(delivery=got, outcome=Completed())])

    async def test_what_cannot_be_read_is_given_up(self, harness: StreamsHarness) -> None:
        hand = Hand(harness.streams, self.me)
        async with listening(harness.streams):
            assert await harness.streams.claim(QUEUE, self.me, 1) == []
            # As from a newer hive.
            strange = publish_arguments(message(), b'{"v":99}')
            await StreamScripts(harness.store).publish(
                keys_of(QUEUE), strange, notify=True, most=None, following=0
            )
            while not (dead := await harness.streams.dead_letters(queue=QUEUE)):
                await asyncio.sleep(0.01)
            assert dead[0].error.kind is ErrorKind.UNPARSABLE
        assert hand.offers == 0
        await harness.expect_depth(waiting=0, delayed=0, running=0)

    async def test_what_was_pushed_to_one_who_died_is_brought_back_at_once(
        self, harness: StreamsHarness
    ) -> None:
        """Killed before it took the message: its successor on the same folder need not wait for the lease."""
        victim, successor = await harness.peer(), await harness.peer()
        sent = message()
        hand = Hand(harness.streams, self.me)
        async with listening(harness.streams):
            assert await harness.streams.claim(QUEUE, self.me, 1) == []
            await victim.publish([sent])
            await hand.taken()
            # It never begins.
            assert await successor.owner_died(self.me) == 1
            (again,) = await successor.claim(QUEUE, new_process_id(), 5)
            assert (again.id, again.attempt, again.redelivered) == (sent.id, 1, True)

    async def test_a_process_that_stood_still_knows_how_old_a_lease_may_be(
        self, harness: StreamsHarness
    ) -> None:
        """It began when the message was given, not when it was read: another process may have it by now."""
        streams = Streams(harness.store, harness.database, lease_seconds=0.2)
        sent, other = message(), new_process_id()
        hand = Hand(streams, self.me)

        async def meanwhile() -> list[Delivery]:
            store = await RedisStore.open(harness.store.url, Redis())
            peer = Streams(store, harness.database, lease_seconds=60)
            await peer.publish([sent])
            assert await peer.claim(QUEUE, other, 1) == []
            while not (expired := (await peer.sweep([QUEUE])).expired):
                await asyncio.sleep(0.01)
            assert expired == 1
            got = await peer.claim(QUEUE, other, 1)
            await store.close()
            return got

        async with listening(streams):
            assert await streams.claim(QUEUE, self.me, 1) == []
            elsewhere = Thread(target=lambda: got.extend(asyncio.run(meanwhile())))
            got: list[Delivery] = []
            elsewhere.start()
            elsewhere.join()  # the loop stands still
            assert [each.id for each in got] == [sent.id]
            taken, since = await hand.taken()
            assert taken.id == sent.id
            assert SystemClock().monotonic() - since > streams.lease_seconds

    async def test_the_lease_of_what_comes_began_shortly_before(self, harness: StreamsHarness) -> None:
        """However long nothing came: else short leases would be in doubt as soon as they are given."""
        streams = Streams(harness.store, harness.database, lease_seconds=10)
        hand, peer = Hand(streams, self.me), await harness.peer()
        clock = SystemClock().monotonic
        async with listening(streams):
            assert await streams.claim(QUEUE, self.me, 1) == []
            reads = await commands_of(harness, "xread")
            while await commands_of(harness, "xread") < reads + 3:
                await asyncio.sleep(0.01)
            assert await streams.claim(QUEUE, self.me, 1) == []  # it does not count as waiting for ever
            published = clock()
            await peer.publish([message()])
            _, since = await hand.taken()
            assert published - since < streams.lease_seconds / 2

    @pytest.mark.parametrize("crossing", [False, True])
    async def test_who_waits_no_more_is_given_nothing(self, harness: StreamsHarness, crossing: bool) -> None:
        """It may be paused, stopped or full: the message goes to whoever asks, not to the end of a lease."""
        peer = await harness.peer()
        hand = Hand(harness.streams, self.me, open=False)
        async with listening(harness.streams):
            assert await harness.streams.claim(QUEUE, self.me, 1) == []
            if crossing:
                await peer.publish([message()])
                await harness.streams.withdraw(QUEUE, self.me)
            else:
                await harness.streams.withdraw(QUEUE, self.me)
                await peer.publish([message()])
                await harness.expect_depth(waiting=1, delayed=0, running=0)
            while not (got := await peer.claim(QUEUE, new_process_id(), 1)):
                await asyncio.sleep(0.01)
            assert got[0].attempt == 1
            assert hand.offers == int(crossing)
            # It may ask again, as any other.
            hand.open = True
            await peer.settle([Settlement(delivery=got[0], outcome=Completed())])
            assert await harness.streams.claim(QUEUE, self.me, 1) == []
            await peer.publish([message()])
            await hand.taken()

    async def test_a_process_that_ends_waits_no_more(self, harness: StreamsHarness) -> None:
        peer = await harness.peer()
        Hand(harness.streams, self.me)
        async with listening(harness.streams):
            assert await harness.streams.claim(QUEUE, self.me, 1) == []
        await peer.publish([message()])
        await harness.expect_depth(waiting=1, delayed=0, running=0)

    async def test_nothing_else_waits_when_a_message_is_pushed(self, harness: StreamsHarness) -> None:
        """What was sent without a wake-up stands first; whoever waits is woken and finds both."""
        peer = await harness.peer()
        Hand(harness.streams, self.me)
        async with listening(harness.streams):
            assert await harness.streams.claim(QUEUE, self.me, 5) == []
            first, second = message(), message()
            await peer.publish([first], notify=False)
            await peer.publish([second])
            await harness.expect_depth(waiting=2, delayed=0, running=0)
            await harness.streams.wait(QUEUE, 10)
            got = await harness.streams.claim(QUEUE, self.me, 5)
            assert [each.id for each in got] == [first.id, second.id]

    async def test_nothing_is_pushed_past_a_pause_or_to_one_who_left(self, harness: StreamsHarness) -> None:
        Hand(harness.streams, self.me)
        async with listening(harness.streams):
            assert await harness.streams.claim(QUEUE, self.me, 1) == []
            await harness.streams.pause(QUEUE)
            await harness.streams.publish([message()])
            await harness.expect_depth(waiting=1, delayed=0, running=0)
            await harness.streams.resume(QUEUE)
            (got,) = await harness.streams.claim(QUEUE, self.me, 1)
            await harness.streams.settle([Settlement(delivery=got, outcome=Completed())])
            assert await harness.streams.claim(QUEUE, self.me, 1) == []
            # As if two seconds had passed since it asked.
            keys = keys_of(QUEUE)
            waiters = await harness.store.client.hget(keys.state, "waiters")
            assert waiters is not None
            await harness.store.client.hset(keys.state, "waiters", waiters[:16] + bytes(8) + waiters[24:])
            await harness.streams.publish([message()])
            await harness.expect_depth(waiting=1, delayed=0, running=0)

    @pytest.mark.parametrize("how", ["unreadable", "poison"])
    async def test_who_gives_a_resource_back_wakes_the_next(self, harness: StreamsHarness, how: str) -> None:
        """Also one that is given up: those who found the next one blocked hear of it from nobody else."""
        keys, redis = keys_of(QUEUE), harness.store.client
        streams = Streams(harness.store, harness.database, crashes=Crashes(hive_limit=1))
        await streams.publish([message(resource="r"), message(resource="r")])
        (first,) = await streams.claim(QUEUE, self.me, 2)
        assert await streams.claim(QUEUE, new_process_id(), 1) == []
        before = await redis.xlen(keys.wake)
        if how == "unreadable":
            mark = (first.id.bytes, first.fence.to_bytes(8, "big"), "it was not readable")
            await StreamScripts(harness.store).reject(keys, mark)
        else:
            await streams.mark_started([first])
            assert await streams.owner_died(self.me) == 1
        assert await redis.xlen(keys.wake) == before + 1
        assert len(await streams.claim(QUEUE, new_process_id(), 1)) == 1

    async def test_a_killed_connection_is_made_again(self, harness: StreamsHarness) -> None:
        peer = await harness.peer()
        async with anyio.create_task_group() as group:
            group.start_soon(harness.streams.run)
            with anyio.fail_after(30):
                await harness.streams.wait(QUEUE, 0.5)
                for _ in range(3):
                    await harness.store.client.client_kill_filter(_type="normal", skipme=True)
                    await peer.publish([message()])
                    while not await harness.streams.claim(QUEUE, self.me, 1):
                        await harness.streams.wait(QUEUE, 10)
            group.cancel_scope.cancel()


async def test_a_reader_that_hears_nothing_in_time_connects_again(
    redis_store: RedisStore, database: Database, tmp_path: Path
) -> None:
    """However many answers came in time before: one timer watches over all reads."""
    me = new_process_id()
    async with FaultProxy.before(redis_store.url, tmp_path) as proxy:
        store = await RedisStore.open(proxy.through(redis_store.url), Redis(call_seconds=1.0))
        streams = Streams(store, database, lease_seconds=1)
        hand = Hand(streams, me)
        async with listening(streams):
            assert await streams.claim(QUEUE, me, 1) == []
            await streams.publish([message()])
            taken, _ = await hand.taken()
            await streams.settle([Settlement(delivery=taken, outcome=Completed())])
            proxy.freeze()
            while streams.listening:
                await asyncio.sleep(0.01)
            await proxy.heal()
            while not streams.listening:
                await asyncio.sleep(0.01)
            assert streams.outages > 0
            assert await streams.claim(QUEUE, me, 1) == []
            await streams.publish([message()])
            await hand.taken()
        await store.close()


async def test_redis_restarts(database: Database) -> None:
    """Killed and started again: what was published waits, a wake-up works again, fences still rise."""
    folder = Path(tempfile.mkdtemp(prefix="hive-restart-"))
    folder.chmod(0o711)
    server = EmbeddedValkey(folder, Embedded())
    me = new_process_id()
    try:
        store = await RedisStore.open(await server.start(), Redis())
        harness = StreamsHarness(store, database)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.streams.run)
            with anyio.fail_after(60):
                while not harness.streams.listening:
                    await harness.streams.wait(QUEUE, 0.05)
                await harness.streams.publish([message(), message()])
                # Waits for the server to have written its log, which it does once a second.
                while (await store.client.info("persistence"))["aof_buffer_length"]:
                    await anyio.sleep(0.05)
                (before,) = await harness.streams.claim(QUEUE, me, 1)
                assert server.pid is not None
                os.kill(server.pid, signal.SIGKILL)
                while server.pid is not None:
                    await anyio.sleep(0.01)
                with pytest.raises(StoreDown):
                    await harness.streams.claim(QUEUE, me, 1)
                with pytest.raises(StoreDown):
                    await harness.streams.publish([message()])
                await server.stop()
                await server.start()
                got: list[Delivery] = []
                while not got:
                    got = await harness.streams.claim(QUEUE, me, 2)
                    await harness.streams.wait(QUEUE, 0.05)
                assert all(each.fence > before.fence for each in got)
                while not harness.streams.listening:
                    await harness.streams.wait(QUEUE, 0.05)
                await (await harness.peer()).publish([message()])
                while not await harness.streams.claim(QUEUE, me, 2):
                    await harness.streams.wait(QUEUE, 10)
                await harness.streams.sweep([QUEUE])
                await harness.expect_shares()
            group.cancel_scope.cancel()
        await store.close()
    finally:
        await server.stop()
        shutil.rmtree(folder, ignore_errors=True)
