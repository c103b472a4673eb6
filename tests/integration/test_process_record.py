"""The rows of hive.process, and the supervisor's own ticks over real stores."""

import time
from collections.abc import Callable
from uuid import uuid4

import anyio
import pytest
import structlog

import supervisor.ticks  # noqa: F401 - importing it registers the ticks
from hive.broker.ledger import Ledger
from hive.broker.port import Broker, Delivery, Lane, Message, Settlement
from hive.client import Client
from hive.clock import SystemClock
from hive.context import Context
from hive.errors import StoreDown
from hive.events import Events, QueueMeasured
from hive.ids import ProcessId, QueueName, TaskName, new_message_id, new_process_id
from hive.outcomes import Completed
from hive.settings import Crashes, Leases, Monitoring
from hive.store.heartbeat import Heartbeat, PostgresHeartbeat, RedisHeartbeat
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.tasks import registry
from hive.testing.manual_clock import ManualClock
from supervisor.record import ProcessRecord
from supervisor.sweeper import Sweeper

QUEUE = QueueName("scheduled_tasks")


def record(database: Database, instance, process: ProcessId | None = None) -> ProcessRecord:
    return ProcessRecord(
        database,
        instance=instance,
        process=process or new_process_id(),
        slots={"light": 24},
        clock=SystemClock(),
    )


@pytest.fixture
async def ledger(database: Database) -> Broker:
    return Ledger(database, lease_seconds=60, crashes=Crashes())


async def row_of(database: Database, process: ProcessId) -> dict:
    async with database.acquire() as connection:
        row = await connection.fetchrow(
            "select slots, stopped_at, last_seen_at, now() as now from hive.process where id = $1", process
        )
    assert row is not None
    return dict(row)


async def test_a_new_boot_learns_of_the_earlier_ones_that_did_not_end(database: Database) -> None:
    instance, other = uuid4(), uuid4()
    first, second, third = new_process_id(), new_process_id(), new_process_id()
    assert await record(database, instance, first).begin() == []
    assert await record(database, other).begin() == []
    earlier = record(database, instance, second)
    assert await earlier.begin() == [first]
    await earlier.buried([first])
    assert (await row_of(database, first))["stopped_at"] is not None
    await earlier.end()
    last = record(database, instance, third)
    assert await last.begin() == []
    assert await last.begin() == [], "to say it twice changes nothing"
    row = await row_of(database, third)
    assert row["slots"] == {"light": 24}
    assert row["stopped_at"] is None


async def test_a_boot_that_died_before_it_buried_leaves_the_dead_to_the_next(database: Database) -> None:
    instance = uuid4()
    first, second = new_process_id(), new_process_id()
    await record(database, instance, first).begin()
    assert await record(database, instance, second).begin() == [first]
    assert sorted(await record(database, instance).begin()) == sorted([first, second])


async def test_it_is_seen_again_and_again_and_an_outage_is_no_failure(database: Database) -> None:
    process = new_process_id()
    running = record(database, uuid4(), process)
    await running.begin()
    async with database.acquire() as connection:
        await connection.execute("update hive.process set last_seen_at = now() - interval '1 hour'")
    running.resized({"light": 48})
    await running.run_once()
    row = await row_of(database, process)
    assert (row["now"] - row["last_seen_at"]).total_seconds() < 30
    assert row["slots"] == {"light": 48}
    await database.close()
    await running.run_once()
    assert running.pulse.fresh
    with pytest.raises(StoreDown):
        await running.end()


async def test_the_deliveries_of_a_dead_boot_run_again_at_once(database: Database, ledger: Broker) -> None:
    instance, dead = uuid4(), new_process_id()
    await record(database, instance, dead).begin()
    await ledger.publish([message()])
    assert len(await ledger.claim(QUEUE, dead, 10)) == 1
    now = new_process_id()
    boot = record(database, instance, now)
    for earlier in await boot.begin():
        assert await ledger.owner_died(earlier) == 1
    assert len(await ledger.claim(QUEUE, now, 10)) == 1


def message(**options) -> Message:
    return Message(id=new_message_id(), queue=QUEUE, task=TaskName("x"), tenant=None, args={}, **options)


@pytest.fixture(params=["redis", "postgres"])
def heartbeat(
    request: pytest.FixtureRequest, database: Database, redis_store: RedisStore
) -> Callable[[float], Heartbeat]:
    """Makes heartbeats that end after so many seconds."""
    if request.param == "redis":
        return lambda seconds: RedisHeartbeat(redis_store, seconds)
    return lambda seconds: PostgresHeartbeat(database, seconds)


async def test_a_heartbeat_has_an_age_and_an_end(heartbeat: Callable[[float], Heartbeat]) -> None:
    short, long = heartbeat(0.2), heartbeat(600)
    assert await short.age_seconds() is None
    await short.mark()
    with anyio.fail_after(20):
        while await short.age_seconds() is not None:
            await anyio.sleep(0.02)
    began = time.monotonic()
    await long.mark()
    age = await long.age_seconds()
    assert age is not None
    assert 0 <= age <= time.monotonic() - began + 0.01


async def test_a_heartbeat_whose_store_is_away_says_so(database: Database) -> None:
    heartbeat = PostgresHeartbeat(database, 60)
    await database.close()
    with pytest.raises(StoreDown):
        await heartbeat.mark()
    with pytest.raises(StoreDown):
        await heartbeat.age_seconds()


class Desk:
    """What a tick's handler is given, over real stores."""

    def __init__(self, database: Database, ledger: Broker) -> None:
        self.events = Events()
        self.measured: dict[str, QueueMeasured] = {}
        self.events.subscribe(QueueMeasured, lambda event: self.measured.update({event.queue: event}))
        self.heartbeat = PostgresHeartbeat(database, 600)
        self.limits = Monitoring()
        self.database = database
        self.ledger = ledger
        self.client = Client(routes={QUEUE: ledger}, registry=registry)

    async def run(self, name: str) -> None:
        task = registry.get(name)
        context = Context(
            delivery=Delivery(
                id=new_message_id(),
                queue=task.options.queue,
                task=task.name,
                tenant=None,
                args={},
                lane=Lane.NORMAL,
                owner=new_process_id(),
                fence=1,
                attempt=1,
                max_attempts=1,
            ),
            broker=self.ledger,
            stores=self.database,
            client=self.client,
            services={Events: self.events, Heartbeat: self.heartbeat, Monitoring: self.limits},
        )
        await task.function(context)


@pytest.fixture
async def desk(database: Database, ledger: Broker) -> Desk:
    return Desk(database, ledger)


async def test_the_heartbeat_tick_leaves_its_mark(desk: Desk) -> None:
    await desk.run("heartbeat")
    assert await desk.heartbeat.age_seconds() is not None


async def test_queues_are_counted_and_an_old_message_raises_an_alarm(desk: Desk, database: Database) -> None:
    await desk.ledger.publish([message(), message(), message(delay_seconds=60)])
    await desk.run("monitor_queues")
    measured = desk.measured[QUEUE]
    assert (measured.waiting, measured.delayed, measured.running) == (2, 1, 0)
    async with database.acquire() as connection:
        await connection.execute(
            "update hive.job set run_at = run_at - interval '1 h', created_at = created_at - interval '1 h'"
        )
    with structlog.testing.capture_logs() as captured:
        await desk.run("monitor_queues")
    (line,) = [line for line in captured if line["event"] == "queue.waits_too_long"]
    assert line["queue"] == QUEUE
    assert line["consumer"] == "none"
    assert line["oldest_seconds"] >= 3600


async def test_silent_processes_and_open_transactions_are_named_and_old_rows_go(
    desk: Desk, database: Database
) -> None:
    silent, gone = new_process_id(), new_process_id()
    await record(database, uuid4(), silent).begin()
    await record(database, uuid4(), gone).begin()
    async with database.acquire() as connection:
        await connection.execute(
            "update hive.process set last_seen_at = now() - case when id = $1 then interval '5 min' else"
            " interval '8 days' end",
            silent,
        )
    with structlog.testing.capture_logs() as captured:
        await desk.run("monitor_processes")
    assert [line["process"] for line in captured if line["event"] == "process.silent"] == [
        str(silent),
        str(gone),
    ]
    assert not [line for line in captured if line["event"] == "postgres.transaction_open"]
    async with database.acquire() as connection:
        assert await connection.fetchval("select count(*) from hive.process") == 1


async def test_an_open_transaction_is_named(desk: Desk, database: Database) -> None:
    # A limit of next to nothing, in place of a test that holds a transaction open for five minutes.
    desk.limits = Monitoring(transaction_seconds=0.001)
    async with database.transaction() as holder:
        backend = await holder.fetchval("select pg_backend_pid() from hive.leader_term for update")
        with structlog.testing.capture_logs() as captured:
            await desk.run("monitor_processes")
    (line,) = [line for line in captured if line["event"] == "postgres.transaction_open"]
    assert line["backend"] == backend


async def test_sweeps_bring_back_what_was_abandoned(database: Database, ledger: Broker) -> None:
    clock = ManualClock()
    sweeper = Sweeper({"ledger": (ledger, [QUEUE])}, Leases(), clock=clock)
    await ledger.publish([message(delay_seconds=0.01), message()])
    (delivery,) = await ledger.claim(QUEUE, new_process_id(), 10)
    async with database.acquire() as connection:
        await connection.execute(
            "update hive.job set lease_until = now() - interval '1 s' where state = 'running'"
        )
    with anyio.fail_after(20):
        while (await ledger.depth(QUEUE)).waiting < 2:
            await sweeper.run_once()
    assert sweeper.pulse.fresh
    assert (await ledger.settle([Settlement(delivery=delivery, outcome=Completed())]))[0] == "stale"
