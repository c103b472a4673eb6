"""Tenants beside each other in pools, on both carriers: counted in jobs that begin, not in time."""

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import pytest

from hive.broker.ledger import Ledger
from hive.broker.port import Broker
from hive.broker.streams import Streams
from hive.context import Context
from hive.ids import QueueName, TenantId
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.tasks import Task, task
from patience import until
from pool_kit import Rig

SLOTS, PREFETCH = 6, 4
LOUD, QUIET = TenantId("loud"), TenantId("quiet")

Carrier = Callable[[], Broker]


@pytest.fixture(params=["ledger", "stream"])
def carrier(request: pytest.FixtureRequest, database: Database, redis_store: RedisStore) -> Carrier:
    """Makes brokers on one store, one for each process."""
    if request.param == "ledger":
        return lambda: Ledger(database)
    return lambda: Streams(redis_store, database)


class Floor:
    """One or several processes with a pool each; their handlers end only when they are let go."""

    def __init__(self, carrier: Carrier, processes: int) -> None:
        self.began: list[TenantId | None] = []
        self.running = [0] * processes
        self._passes = anyio.Semaphore(0)
        self.rigs = [self._rig(carrier(), number) for number in range(processes)]

    def _rig(self, broker: Broker, number: int) -> Rig:
        rig = Rig(broker=broker, slots=SLOTS, prefetch=PREFETCH)

        @task(queue="work", into=rig.registry, name="job")
        async def job(context: Context) -> None:
            self.began.append(context.tenant)
            self.running[number] += 1
            try:
                await self._passes.acquire()
            finally:
                self.running[number] -= 1

        self.job: Task[[]] = job
        return rig

    async def send(self, tenant: TenantId, count: int) -> None:
        client = self.rigs[0].client
        await client.publish([client.message(self.job, {}, tenant=tenant) for _ in range(count)])

    async def until_full(self) -> None:
        """Wait until every slot of every process is busy."""
        await until(lambda: self.running == [SLOTS] * len(self.rigs))

    async def let_go(self, count: int) -> None:
        """End ``count`` handlers, and wait until as many others have begun in their slots."""
        goal = len(self.began) + count
        for _ in range(count):
            self._passes.release()
        await until(lambda: len(self.began) >= goal)
        await self.until_full()


@asynccontextmanager
async def floor(carrier: Carrier, processes: int) -> AsyncGenerator[Floor]:
    made = Floor(carrier, processes)
    async with AsyncExitStack() as stack:
        for rig in made.rigs:  # all of them, before anybody claims by a share that others are not in yet
            await rig.broker.announce(rig.owner, {QueueName("work"): SLOTS})
        for rig in made.rigs:
            await stack.enter_async_context(rig.serving())
        yield made


async def begun_before(floor: Floor, tenant: TenantId) -> int:
    """How many of others' begin between now and ``tenant``'s first, one slot at a time."""
    before = len(floor.began)
    while tenant not in floor.began[before:]:
        await floor.let_go(1)
        assert len(floor.began) < before + 1_000
    return floor.began.index(tenant, before) - before


@pytest.mark.parametrize("processes", [1, 3])
async def test_a_quiet_tenant_passes_a_flood(carrier: Carrier, processes: int) -> None:
    async with floor(carrier, processes) as here:
        await here.send(LOUD, 10_000)
        await here.until_full()
        await here.let_go(2 * SLOTS)
        await here.send(QUIET, 1)
        slots, prefetch = SLOTS * processes, PREFETCH * processes
        assert await begun_before(here, QUIET) <= 2 * slots + prefetch


@pytest.mark.parametrize("processes", [1, 3])
async def test_a_quiet_tenant_passes_a_hundred_busy_ones(carrier: Carrier, processes: int) -> None:
    busy: Sequence[TenantId] = [TenantId(f"busy_{number:03}") for number in range(100)]
    async with floor(carrier, processes) as here:
        for each in busy:
            await here.send(each, 20)
        await here.until_full()
        await here.let_go(2 * SLOTS)
        await here.send(QUIET, 1)
        slots, prefetch = SLOTS * processes, PREFETCH * processes
        assert await begun_before(here, QUIET) <= 2 * slots + prefetch + len(busy)
        assert len(set(here.began)) > 5, "they take turns"


@pytest.mark.parametrize("processes", [1, 3])
async def test_a_lone_tenant_has_every_slot(carrier: Carrier, processes: int) -> None:
    async with floor(carrier, processes) as here:
        await here.send(LOUD, 2_000)
        await here.until_full()
        for _ in range(40):
            await here.let_go(SLOTS)
        assert len(here.began) == processes * SLOTS + 40 * SLOTS
