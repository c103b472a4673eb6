"""Streams with much in them: what a call costs depends on what it touches, not on what waits."""

import time
from collections.abc import Awaitable, Callable

import pytest

from carriers import StreamsHarness
from hive.broker.port import Settlement
from hive.ids import TaskName, TenantId, new_process_id
from hive.outcomes import Completed
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.harness import QUEUE, message

me = new_process_id()


@pytest.fixture
def harness(redis_store: RedisStore, database: Database) -> StreamsHarness:
    return StreamsHarness(redis_store, database)


async def processor_seconds(harness: StreamsHarness) -> float:
    """What the server has spent. It does not grow while other programs are at work, as the clock does."""
    found = await harness.store.client.info("cpu")
    return found["used_cpu_user_main_thread"] + found["used_cpu_sys_main_thread"]


async def cost(harness: StreamsHarness, call: Callable[[], Awaitable[object]]) -> float:
    """Seconds of client and server together."""
    before, mine = await processor_seconds(harness), time.process_time()
    await call()
    return await processor_seconds(harness) - before + time.process_time() - mine


async def claims_and_cancels(harness: StreamsHarness, waiting: int, tenants: int) -> tuple[float, float]:
    """The costs of ten claims of 200, and of cancelling 1,000 of one task, with so many others waiting."""
    await harness.store.client.flushall()
    await harness.streams.announce(me, {QUEUE: 24})
    names = [TenantId(f"tenant_{n}") for n in range(tenants)]
    for start in range(0, waiting, 5_000):
        await harness.streams.publish(
            [message(tenant=names[n % tenants]) for n in range(start, min(waiting, start + 5_000))]
        )
    chosen = [message(task="chosen", tenant=names[n % tenants]) for n in range(1_000)]
    await harness.streams.publish(chosen)

    async def claim() -> None:
        got = await harness.streams.claim(QUEUE, me, 200)
        assert len(got) == 200
        await harness.streams.settle([Settlement(delivery=each, outcome=Completed()) for each in got])

    async def cancel() -> None:
        assert await harness.streams.cancel_where(queue=QUEUE, task=TaskName("chosen")) == 1_000

    cancelled = await cost(harness, cancel)
    await claim()
    return min([await cost(harness, claim) for _ in range(4)]), cancelled


@pytest.mark.parametrize("tenants", [1, 1_000])
async def test_a_hundred_thousand_waiting(harness: StreamsHarness, tenants: int) -> None:
    few = [await claims_and_cancels(harness, 1_000, tenants) for _ in range(2)]
    claim, cancel = await claims_and_cancels(harness, 100_000, tenants)
    least_claim, least_cancel = (min(each[at] for each in few) for at in (0, 1))
    print(f"{tenants}: claim {least_claim:.4f}, {claim:.4f} s; cancel {least_cancel:.4f}, {cancel:.4f} s")
    assert claim < 3 * least_claim
    assert cancel < 3 * least_cancel
    depth = await harness.streams.depth(QUEUE)
    assert depth.waiting == 10_001
