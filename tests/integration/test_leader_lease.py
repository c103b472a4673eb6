"""The leader lease against real stores: one holder, take-over, and terms that a flush cannot fool."""

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from pathlib import Path
from uuid import UUID, uuid4

import anyio
import pytest

from hive.clock import SystemClock
from hive.embedded import EmbeddedValkey
from hive.errors import StoreDown
from hive.events import Events, LeaderChanged
from hive.ids import ProcessId, new_process_id
from hive.locks.port import LeaderLease, StaleTerm, assert_term
from hive.locks.postgres import PostgresLease
from hive.locks.redis import KEY, RedisLease
from hive.settings import Embedded, Leases, Postgres, Redis
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from patience import until
from supervisor.leader import Leadership

SOON = Leases(leader_seconds=3, leader_renew_seconds=0.5, leader_margin_seconds=0.5)

Make = Callable[..., Awaitable[LeaderLease]]


@pytest.fixture(params=["redis", "postgres"])
async def lease(
    request: pytest.FixtureRequest, database: Database, postgres_dsn: str, valkey_url: str
) -> AsyncGenerator[Make]:
    """Makes leases of both kinds, each on a connection of its own."""
    made: list[LeaderLease] = []

    async def make(
        *, instance: UUID | None = None, process: ProcessId | None = None, ttl_seconds: float = 60
    ) -> LeaderLease:
        who = {"instance": instance or uuid4(), "process": process or new_process_id()}
        one: LeaderLease
        if request.param == "redis":
            one = await RedisLease.open(valkey_url, Redis(), database, **who, ttl_seconds=ttl_seconds)
        else:
            one = await PostgresLease.open(postgres_dsn, Postgres(), **who, ttl_seconds=ttl_seconds)
        made.append(one)
        return one

    yield make
    for one in made:
        await one.close()


async def taken(lease: LeaderLease, seconds: float = 20) -> int:
    """The term, as soon as ``lease`` can be taken."""
    with anyio.fail_after(seconds):
        while True:
            term = await lease.try_acquire()
            if term is not None:
                return term
            await anyio.sleep(0.01)


async def test_one_holds_it_and_a_release_lets_the_next_take_it_under_a_higher_term(lease: Make) -> None:
    first, second = await lease(), await lease()
    assert await first.try_acquire() == 1
    assert await second.try_acquire() is None
    assert await first.renew()
    assert not await second.renew()
    await second.release()  # not its to give up
    assert await second.try_acquire() is None
    await first.release()
    assert await second.try_acquire() == 2
    assert not await first.renew()
    await first.release()  # must not end its successor's lease
    assert await second.renew()
    assert await first.try_acquire() is None


async def test_an_expired_lease_is_taken_over_and_a_renewed_one_is_not(lease: Make) -> None:
    renewed, other = await lease(ttl_seconds=2), await lease()
    assert await renewed.try_acquire() == 1
    for _ in range(12):
        await anyio.sleep(0.2)  # time has to pass here: it is the store's own
        assert await renewed.renew()
        assert await other.try_acquire() is None
    assert await taken(other) == 2
    assert not await renewed.renew()


async def test_an_earlier_boot_of_the_same_instance_is_not_waited_for(
    lease: Make, database: Database
) -> None:
    instance, earlier, now = uuid4(), new_process_id(), new_process_id()
    async with database.acquire() as connection:
        for process in (earlier, now):
            await connection.execute(
                "insert into hive.process (id, instance, host, pid) values ($1, $2, 'here', 1)",
                process,
                instance,
            )
    dead = await lease(instance=instance, process=earlier, ttl_seconds=600)
    assert await dead.try_acquire() == 1
    other = await lease()
    assert await other.try_acquire() is None
    again = await lease(instance=instance, process=now, ttl_seconds=600)
    assert await again.try_acquire() == 2
    assert not await dead.renew()


async def test_only_the_present_terms_writes_are_accepted(lease: Make, database: Database) -> None:
    first, second = await lease(), await lease()
    assert await first.try_acquire() == 1
    async with database.transaction() as connection:
        await assert_term(connection, 1)
    await first.release()
    assert await second.try_acquire() == 2
    with pytest.raises(StaleTerm):
        async with database.transaction() as connection:
            await assert_term(connection, 1)
    async with database.transaction() as connection:
        await assert_term(connection, 2)


async def test_a_write_that_was_let_through_is_committed_before_the_next_term(
    lease: Make, database: Database
) -> None:
    first, second = await lease(), await lease()
    assert await first.try_acquire() == 1
    await first.release()
    async with anyio.create_task_group() as group, database.transaction() as writer:
        await assert_term(writer, 1)
        group.start_soon(taken, second)
        await blocked_backend(database)
        assert await writer.fetchval("select term from hive.leader_term") == 1
    async with database.acquire() as connection:
        assert await connection.fetchval("select term from hive.leader_term") == 2


async def blocked_backend(database: Database) -> None:
    """Return when some session waits for a lock on the term."""
    with anyio.fail_after(20):
        while True:
            async with database.acquire() as connection:
                if await connection.fetchval(
                    """
                    select count(*) from pg_stat_activity
                    where datname = current_database() and wait_event_type = 'Lock'
                      and query like '%leader_term%'
                    """
                ):
                    return
            await anyio.sleep(0.01)


async def test_after_a_flush_two_hold_the_lease_but_one_terms_writes_are_accepted(
    valkey_url: str, redis_store: RedisStore, database: Database
) -> None:
    made = [
        await RedisLease.open(
            valkey_url, Redis(), database, instance=uuid4(), process=new_process_id(), ttl_seconds=60
        )
        for _ in range(2)
    ]
    leaders = [Leadership(one, Leases(), clock=SystemClock(), events=Events()) for one in made]
    await leaders[0].run_once()
    await redis_store.client.flushall()
    await leaders[1].run_once()
    assert leaders[0].leading
    assert leaders[1].leading
    accepted = []
    for leader in leaders:
        try:
            async with database.transaction() as connection:
                assert leader.term is not None
                await assert_term(connection, leader.term)
                accepted.append(leader.term)
        except StaleTerm:
            pass
    assert accepted == [2]
    await leaders[0].run_once()
    assert not leaders[0].leading, "its next renewal tells it"
    assert leaders[1].leading
    assert await redis_store.client.get(KEY) is not None
    for one in made:
        await one.close()


class Sleepy(RedisLease):
    """A candidate that falls asleep between its lease and its term; ``meanwhile`` happens then."""

    meanwhile: Callable[[], Awaitable[None]]

    async def _take_term_after(self, before: int) -> int | None:
        await self.meanwhile()
        return await super()._take_term_after(before)


async def test_who_slept_between_lease_and_term_does_not_depose_the_leader_of_today(
    valkey_url: str, redis_store: RedisStore, database: Database
) -> None:
    sleepy = await Sleepy.open(
        valkey_url, Redis(), database, instance=uuid4(), process=new_process_id(), ttl_seconds=60
    )
    today = await RedisLease.open(
        valkey_url, Redis(), database, instance=uuid4(), process=new_process_id(), ttl_seconds=60
    )

    async def meanwhile() -> None:
        await redis_store.client.flushall()
        assert await today.try_acquire() == 1

    sleepy.meanwhile = meanwhile
    assert await sleepy.try_acquire() is None
    assert await today.renew()
    async with database.transaction() as connection:
        await assert_term(connection, 1)
    await sleepy.close()
    await today.close()


LEADER = """
import asyncio, sys
from uuid import uuid4
import anyio
from hive.clock import SystemClock
from hive.events import Events, LeaderChanged
from hive.ids import new_process_id
from hive.locks.redis import RedisLease
from hive.settings import Leases, Log, Postgres, Redis
from hive.store.postgres import Database
from supervisor import logs
from supervisor.leader import Leadership

async def main(dsn, url, leader_seconds):
    logs.configure(Log())
    database = await Database.open(dsn, settings=Postgres(pool_size=2))
    events = Events()
    events.subscribe(LeaderChanged, lambda event: print(event.leading, event.term, flush=True))
    settings = Leases(leader_seconds=float(leader_seconds), leader_renew_seconds=0.5,
                      leader_margin_seconds=0.5)
    lease = await RedisLease.open(url, Redis(), database, instance=uuid4(), process=new_process_id(),
                                  ttl_seconds=settings.leader_seconds)
    leadership = Leadership(lease, settings, clock=SystemClock(), events=events)
    async with anyio.create_task_group() as group:
        group.start_soon(leadership.run)
        await anyio.to_thread.run_sync(sys.stdin.readline)
        await leadership.release()
        print("released", flush=True)
        group.cancel_scope.cancel()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def reachable_dir() -> Generator[Path]:
    """A folder that a server of another user can reach; pytest's own are closed to it."""
    folder = Path(tempfile.mkdtemp(prefix="hive-test-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


class Follower:
    """A leadership in this process, running."""

    def __init__(self, lease: LeaderLease, settings: Leases = SOON) -> None:
        self.clock = SystemClock()
        self.events = Events()
        self.seen: list[tuple[bool, int]] = []
        self.at: list[float] = []
        self.events.subscribe(LeaderChanged, self._note)
        self.leadership = Leadership(lease, settings, clock=self.clock, events=self.events)

    def _note(self, event: LeaderChanged) -> None:
        self.seen.append((event.leading, event.term))
        self.at.append(self.clock.monotonic())


@pytest.mark.parametrize("end", ["kill", "release"])
async def test_another_process_takes_over(
    end: str, valkey_url: str, postgres_dsn: str, database: Database
) -> None:
    # One that ends soon by itself, or one that only its holder ends in time.
    lease_seconds = SOON.leader_seconds if end == "kill" else 600
    with subprocess.Popen(
        [sys.executable, "-c", LEADER, postgres_dsn, valkey_url, str(lease_seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert await anyio.to_thread.run_sync(other.stdout.readline) == "True 1\n"
        lease = await RedisLease.open(
            valkey_url,
            Redis(),
            database,
            instance=uuid4(),
            process=new_process_id(),
            ttl_seconds=SOON.leader_seconds,
        )
        here = Follower(lease)
        async with anyio.create_task_group() as group:
            group.start_soon(here.leadership.run)
            await anyio.sleep(SOON.leader_seconds + 1)  # longer than a lease that is not renewed
            assert here.seen == []
            began = here.clock.monotonic()
            if end == "kill":
                other.send_signal(signal.SIGKILL)
                await until(lambda: here.seen)
                assert here.at[0] - began < 3 * SOON.leader_seconds
            else:
                other.stdin.write("\n")
                other.stdin.flush()
                await until(lambda: here.seen, what="a hand-over waits for no lease")
            assert here.seen == [(True, 2)]
            other.kill()
            group.cancel_scope.cancel()
        await lease.close()


async def test_without_redis_a_leader_stops_in_time_and_leads_again_when_it_is_back(
    reachable_dir: Path, database: Database
) -> None:
    settings = Leases(leader_seconds=8, leader_renew_seconds=0.5, leader_margin_seconds=5)
    server = EmbeddedValkey(reachable_dir, Embedded())
    url = await server.start()
    lease = await RedisLease.open(
        url,
        Redis(call_seconds=0.5),
        database,
        instance=uuid4(),
        process=new_process_id(),
        ttl_seconds=settings.leader_seconds,
    )
    here = Follower(lease, settings)
    led: list[int] = []

    async def body(term: int) -> None:
        led.append(term)
        try:
            await anyio.sleep_forever()
        finally:
            led.append(-term)

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(here.leadership.run)
            group.start_soon(here.leadership.while_leading, body)
            await until(lambda: led == [1])
            went_at = here.clock.monotonic()
            await server.stop()
            await until(lambda: led == [1, -1])
            stopped_after = here.clock.monotonic() - went_at
            assert stopped_after < settings.leader_seconds, "another may lead from then on"
            assert here.leadership.pulse.fresh, "an outage is no reason to restart the service"
            with pytest.raises(StoreDown):
                await lease.renew()
            await server.start()
            await until(lambda: led == [1, -1, 2])
            group.cancel_scope.cancel()
    finally:
        await lease.close()
        await server.stop()
