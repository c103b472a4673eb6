"""A process of hive's own parts that works one queue, made to be killed, frozen and cut off.

The first line of its input is a ``Plan`` in JSON. After that each line is a command, answered by one line of
JSON: ``status`` tells what it holds, ``stop`` drains and ends it. Every start of a handler and every outcome
is appended to ``Plan.journal``, so that they are known however the process ends.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar
from uuid import UUID

from hive.backoff import Retry
from hive.broker.ledger import Ledger
from hive.broker.port import Broker, Delivery
from hive.broker.streams import Streams
from hive.client import Client
from hive.clock import SystemClock
from hive.context import Context
from hive.errors import StoreDown
from hive.events import Events, JobSettled
from hive.ids import ProcessId, QueueName
from hive.settings import Crashes, Leases, Log, Pool, Postgres, Redis, Services, Shutdown
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.tasks import Registry, Task, task
from pools.pool import WorkerPool
from stepping import Stepping
from supervisor.logs import configure
from supervisor.record import ProcessRecord
from supervisor.service import Service
from supervisor.sweeper import Sweeper
from supervisor.tree import ServiceTree

T = TypeVar("T")

QUEUE = QueueName("chaos")
TASK = "effect"
PATIENT = Retry(delays_seconds=(0.1, 0.2, 0.4, 0.8, *(1.0,) * 56), jitter=0.5)
"""For errors of an outage: an effect that failed with its store is tried until the store is back."""
STORE_SECONDS = 2.0
"""Deadline of one call to a store: 30 s, scaled like the leases."""
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one consumer is to be. ``die_at``: at which await of its first handler it kills itself."""

    carrier: str  # ledger or stream
    dsn: str
    redis_url: str
    instance: str
    owner: str
    journal: str
    slots: int
    prefetch: int
    lease_seconds: float
    idle_seconds: float | None = None  # of a peer
    die_at: int | None = None

    def text(self) -> str:
        """One line, as ``read`` takes it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, line: str) -> "Plan":
        return cls(**json.loads(line))


def leases(lease_seconds: float) -> Leases:
    """hive's own leases, all shortened alike: renewed at a third, in doubt at a sixth, swept often."""
    return Leases(
        delivery_seconds=lease_seconds,
        renew_seconds=lease_seconds / 3,
        doubt_margin_seconds=lease_seconds / 6,
        sweep_seconds=lease_seconds / 10,
    )


async def transactional(context: Context, number: int, milliseconds: int) -> None:
    """An effect that commits with its job. No constraint would hide a second one."""
    await asyncio.sleep(milliseconds / 1000)
    async with context.transaction() as connection:
        await connection.execute(
            "insert into chaos.effect (number, message) values ($1, $2)", number, context.id
        )


async def idempotent(context: Context, number: int, milliseconds: int) -> None:
    """An effect that a second run finds done, by the key that all runs of the message share."""
    await asyncio.sleep(milliseconds / 1000)
    async with context.connection() as connection:
        await connection.execute(
            "insert into chaos.effect (number, message, key) values ($1, $2, $3) on conflict do nothing",
            number,
            context.id,
            context.idempotency_key,
        )


EFFECTS: dict[str, Callable[..., Any]] = {"ledger": transactional, "stream": idempotent}


def declare(registry: Registry, carrier: str, function: Callable[..., Any] | None = None) -> Task[...]:
    """The one task; ``function`` takes the effect's place."""
    made = task(
        queue=QUEUE,
        name=TASK,
        retry=PATIENT,
        on_lease_doubt="continue" if carrier == "ledger" else "cancel",
        into=registry,
    )
    return made(function or EFFECTS[carrier])


class Journal:
    """Lines appended in one write each: what was written before a SIGKILL stays."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.outcomes: Counter[str] = Counter()

    def started(self, context: Context, number: int) -> None:
        self._write({"started": number, "message": str(context.id), "fence": context.fence})

    def settled(self, event: JobSettled) -> None:
        self.outcomes[event.outcome] += 1
        self._write({"outcome": event.outcome, "message": str(event.job)})

    def _write(self, fact: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(fact).encode() + b"\n")


class Consumer:
    """The process: brokers, sweeper and pool under the service tree, as a hive runs them."""

    def __init__(self, plan: Plan, database: Database, redis: RedisStore | None) -> None:
        self._plan = plan
        self._survived = False
        self._database = database
        self._redis = redis
        self._journal = Journal(plan.journal)
        self._clock = SystemClock()
        self._events = Events()
        self._events.subscribe(JobSettled, self._journal.settled)
        self._owner = ProcessId(UUID(plan.owner))
        settings = leases(plan.lease_seconds)
        # Deaths are this test's own doing, and no job's fault.
        crashes = Crashes(hive_limit=1000)
        self._broker: Broker
        if redis is None:
            self._broker = Ledger(database, lease_seconds=plan.lease_seconds, crashes=crashes)
        else:
            self._broker = Streams(redis, database, lease_seconds=plan.lease_seconds, crashes=crashes)
        routes = {QUEUE: self._broker}
        registry = Registry()
        self._declare(registry)
        client = Client(routes=routes, registry=registry)

        def context(delivery: Delivery, broker: Broker) -> Context:
            return Context(delivery=delivery, broker=broker, stores=database, client=client, services={})

        self._pool = WorkerPool(
            "chaos",
            Pool(slots=plan.slots, prefetch=plan.prefetch, ledger=(QUEUE,)),
            routes=routes,
            registry=registry,
            contexts=context,
            owner=self._owner,
            leases=settings,
            shutdown=Shutdown(grace_seconds=5, cancel_seconds=2),
            crashes=crashes,
            events=self._events,
            clock=self._clock,
        )
        self._sweeper = Sweeper({plan.carrier: (self._broker, [QUEUE])}, settings, clock=self._clock)
        self._record = ProcessRecord(
            database,
            instance=UUID(plan.instance),
            process=self._owner,
            slots={"chaos": plan.slots},
            clock=self._clock,
        )

    def _declare(self, registry: Registry) -> None:
        effect, die_at = EFFECTS[self._plan.carrier], self._plan.die_at

        async def noted(context: Context, number: int, milliseconds: int) -> None:
            nonlocal die_at
            self._journal.started(context, number)
            at, die_at = die_at, None
            if at is None:
                await effect(context, number, milliseconds)
            else:
                await Stepping(
                    effect(context, number, milliseconds), at, lambda: os.kill(os.getpid(), signal.SIGKILL)
                )
                self._survived = True

        declare(registry, self._plan.carrier, noted)

    async def live(self, commands: asyncio.StreamReader) -> None:
        """From the first sweep for its own dead to the last answer."""
        dead = await patiently(self._record.begin)
        for boot in dead:
            await patiently(lambda boot=boot: self._broker.owner_died(boot))
        await patiently(lambda: self._record.buried(dead))
        async with ServiceTree(Services(), clock=self._clock, events=self._events) as tree:
            tree.add(Service(name="broker", run=self._broker.run))
            tree.add(Service(name="record", run=self._record.run, pulse=self._record.pulse))
            tree.add(Service(name="sweeper", run=self._sweeper.run, pulse=self._sweeper.pulse, critical=True))
            tree.add(Service(name="pool", run=self._pool.run, pulse=self._pool.pulse, critical=True))
            async for line in commands:
                if line == b"stop\n":
                    tree.let_end("pool")
                    report = await self._pool.drain(5)
                    answer({**self._status(), "drained": asdict(report)})
                    break
                answer(self._status())
        await patiently(self._record.end)

    def _status(self) -> dict[str, Any]:
        slots = self._pool.slots
        # Private, and nowhere else to be had: what each client holds, to compare with what the servers say.
        postgres = self._database._pool
        assert postgres is not None
        listening = bool(getattr(self._broker, "listening", False))
        facts: dict[str, Any] = {
            "ready": self._pool.ready,
            "survived": self._survived,
            "running": len(self._pool.running()),
            "slots": {"in_use": slots.in_use, "written_off": slots.written_off},
            "outcomes": dict(self._journal.outcomes),
            "postgres": {
                "open": postgres.pool.get_size() + (listening and self._redis is None),
                "borrowed": postgres.pool.get_size() - postgres.pool.get_idle_size(),
            },
        }
        if self._redis is not None:
            pool = self._redis.client.connection_pool
            kept = self._redis.kept.connection_pool
            held = [
                *(*pool._available_connections, *pool._in_use_connections),
                *(*kept._available_connections, *kept._in_use_connections),
            ]
            facts["redis"] = {
                "open": sum(each.is_connected for each in held) + listening,
                "borrowed": len(pool._in_use_connections),
            }
        return facts


def answer(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """As a start does: wait while the stores are away."""
    while True:
        try:
            return await call()
        except StoreDown:
            await asyncio.sleep(0.1)


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    return reader


async def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    configure(Log(level="info", format="json"))
    commands = await standard_input()
    plan = Plan.read((await commands.readline()).decode())
    settings = Postgres(pool_size=plan.slots, call_seconds=STORE_SECONDS)
    database = await patiently(lambda: Database.open(plan.dsn, settings=settings))
    redis = None
    if plan.carrier == "stream":
        redis = await patiently(lambda: RedisStore.open(plan.redis_url, Redis(call_seconds=STORE_SECONDS)))
    try:
        await Consumer(plan, database, redis).live(commands)
    finally:
        if redis is not None:
            await redis.close()
        await database.close()


if __name__ == "__main__":
    asyncio.run(main())
