"""Given-up jobs of ingestion ask for a tick at once, and for no more ticks than are needed."""

from collections.abc import Sequence
from typing import Any

import pytest

from hive.broker.memory import Memory
from hive.broker.port import Message, Published, Settlement
from hive.client import Client
from hive.context import Context
from hive.errors import StoreDown
from hive.events import Events, JobSettled
from hive.ids import QueueName, TaskName, TenantId, new_message_id, new_process_id
from hive.outcomes import Completed
from hive.tasks import Registry, task
from hive.testing.manual_clock import ManualClock
from supervisor.give_ups import GiveUps

QUEUE = QueueName("coordination")
A, B = TenantId("a"), TenantId("b")


class Carrier(Memory):
    """A memory broker whose store can be taken away."""

    away = False

    async def publish(self, messages: Sequence[Message], **options: Any) -> list[Published]:
        if self.away:
            raise StoreDown("redis", "publishing")
        return await super().publish(messages, **options)


@task(queue=QUEUE, name="tick_of_this_test")
async def tick(context: Context) -> None:
    """Never run here."""


def settled(tenant: TenantId | None, *, outcome: str = "failed", name: str = "process_batch") -> JobSettled:
    return JobSettled(
        pool="docprocessing",
        queue=QueueName("document_processing"),
        task=TaskName(name),
        job=new_message_id(),
        tenant=tenant,
        outcome=outcome,
        run_seconds=0.1,
    )


def standing() -> tuple[Events, Carrier, GiveUps]:
    events, carrier, registry = Events(), Carrier(ManualClock()), Registry()
    registry.add(tick)
    client = Client(routes={QUEUE: carrier}, registry=registry)
    return events, carrier, GiveUps(client, events, tick=tick, key="tick", expires_seconds=900)


async def test_many_failures_of_a_tenant_ask_for_one_tick() -> None:
    events, carrier, give_ups = standing()
    for _ in range(100):
        events.publish(settled(A))
    events.publish(settled(B, name="fetch_connector", outcome="cancelled"))
    assert await give_ups.run_once() == 2
    events.publish(settled(A))  # its tick waits still
    await give_ups.run_once()
    claimed = await carrier.claim(QUEUE, new_process_id(), 10)
    assert sorted((one.task, one.tenant) for one in claimed) == [(tick.name, A), (tick.name, B)]


async def test_a_tick_that_runs_already_runs_again() -> None:
    events, carrier, give_ups = standing()
    events.publish(settled(A))
    await give_ups.run_once()
    (running,) = await carrier.claim(QUEUE, new_process_id(), 10)
    events.publish(settled(A))
    await give_ups.run_once()
    await carrier.settle([Settlement(delivery=running, outcome=Completed())])
    assert len(await carrier.claim(QUEUE, new_process_id(), 10)) == 1


@pytest.mark.parametrize(
    "event",
    [
        settled(A, outcome="completed"),
        settled(A, outcome="retrying"),
        settled(A, outcome="stale"),
        settled(A, name="somebody_elses"),
        settled(None),
    ],
)
async def test_nothing_else_asks_for_a_tick(event: JobSettled) -> None:
    events, carrier, give_ups = standing()
    events.publish(event)
    assert await give_ups.run_once() == 0
    assert await carrier.claim(QUEUE, new_process_id(), 10) == []


async def test_an_outage_leaves_it_to_the_regular_tick() -> None:
    events, carrier, give_ups = standing()
    carrier.away = True
    events.publish(settled(A))
    assert await give_ups.run_once() == 0
    carrier.away = False
    events.publish(settled(B))
    assert await give_ups.run_once() == 1
