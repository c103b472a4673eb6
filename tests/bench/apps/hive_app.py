"""hive: one pool on one queue, carried by the ledger or by a stream (``BENCH_CARRIER``).

Run as a script it is the worker; ``App`` is the client; as a module named in ``process.modules`` it gives its
tasks to a whole ``hive run``.
"""

import asyncio
import os
from contextlib import AsyncExitStack
from typing import Any

import anyio
import recorder

from hive.broker.port import Broker, Delivery, Message
from hive.client import Client
from hive.clock import SystemClock
from hive.context import Context
from hive.events import Events
from hive.ids import QueueName, TenantId, new_process_id
from hive.settings import Crashes, Leases, Pool, Postgres, Redis, Shutdown
from hive.store.postgres import Database
from hive.tasks import Task, registry, task
from pools.pool import WorkerPool
from supervisor.sweeper import Sweeper

QUEUE = QueueName("bench")
TENANT = TenantId("public")
LEDGER = os.environ.get("BENCH_CARRIER", "stream") == "ledger"


@task(queue=QUEUE)
async def empty(context: Context) -> None:
    del context
    recorder.empty()


@task(queue=QUEUE)
async def stamp(context: Context, sent: float) -> None:
    del context
    recorder.stamp(sent)


@task(queue=QUEUE)
async def rest(context: Context, seconds: float) -> None:
    del context
    await recorder.rest_on_loop(seconds)


@task(queue=QUEUE)
async def effect(context: Context, number: int, seconds: float) -> None:
    """On the ledger the effect is a row, committed together with the job; on a stream, a line in a file."""
    if not LEDGER:
        await recorder.effect_on_loop(number, seconds)
        return
    recorder.started(number)
    await asyncio.sleep(seconds)
    async with context.transaction() as connection:
        await connection.execute("insert into bench.effect (number) values ($1)", number)
    recorder.affected(number)


TASKS: dict[str, Task[...]] = {"empty": empty, "stamp": stamp, "rest": rest, "effect": effect}
NAMES = {"empty": (), "stamp": ("sent",), "rest": ("seconds",), "effect": ("number", "seconds")}


class App:
    """hive's client with the one carrier it needs; ``broker`` is open after ``open``."""

    broker: Broker
    client: Client
    database: Database

    async def open(self) -> None:
        self._stack = AsyncExitStack()
        self.database = await Database.open(os.environ["BENCH_POSTGRES"], settings=Postgres())
        self._stack.push_async_callback(self.database.close)
        if LEDGER:  # a worker imports the carrier that it uses
            from hive.broker.ledger import Ledger

            self.broker = Ledger(self.database)
        else:
            from hive.broker.streams import Streams
            from hive.store.redis import RedisStore

            store = await RedisStore.open(os.environ["BENCH_REDIS"], Redis())
            self._stack.push_async_callback(store.close)
            self.broker = Streams(store, self.database)
        self.client = Client(routes={QUEUE: self.broker}, registry=registry)

    def message(self, name: str, arguments: tuple[Any, ...], tenant: TenantId = TENANT) -> Message:
        named = dict(zip(NAMES[name], arguments, strict=True))
        return self.client.message(TASKS[name], named, tenant=tenant)

    async def send(self, task: str, *arguments: Any) -> None:
        await self.client.publish([self.message(task, arguments)])

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        names = NAMES[task]
        named = (dict(zip(names, arguments, strict=True)) for arguments in calls)
        await self.client.publish_all(self.client.messages(TASKS[task], named, tenant=TENANT))

    async def close(self) -> None:
        await self._stack.aclose()


async def work(slots: int, prefetch: int) -> None:
    """The worker: a pool, its carrier's background service and the sweeps, until it is killed."""
    from hive_subscribers import subscribe  # a client does without

    app = App()
    await app.open()
    clock, events = SystemClock(), Events()
    subscribe(events, app.client, clock, tick=empty)
    leases = Leases()
    queues = {"ledger" if LEDGER else "stream": (QUEUE,)}

    def context(delivery: Delivery, broker: Broker) -> Context:
        return Context(delivery=delivery, broker=broker, stores=app.database, client=app.client, services={})

    pool = WorkerPool(
        "bench",
        Pool(slots=slots, prefetch=prefetch, **queues),
        routes={QUEUE: app.broker},
        registry=registry,
        contexts=context,
        owner=new_process_id(),
        leases=leases,
        shutdown=Shutdown(),
        crashes=Crashes(),
        events=events,
        clock=clock,
    )
    sweeper = Sweeper({"bench": (app.broker, [QUEUE])}, leases, clock=clock)
    async with anyio.create_task_group() as group:
        group.start_soon(app.broker.run)
        group.start_soon(sweeper.run)
        group.start_soon(pool.run)


if __name__ == "__main__":
    asyncio.run(work(int(os.environ["BENCH_SLOTS"]), int(os.environ["BENCH_PREFETCH"])))
