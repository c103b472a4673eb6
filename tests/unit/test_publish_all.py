"""Any number of messages, a part being made while the one before is written."""

from collections.abc import Iterator, Sequence
from typing import Any

import anyio
import pytest

from hive.broker.memory import Memory
from hive.broker.port import Message, Published
from hive.client import PART, Client
from hive.context import Context
from hive.errors import QueueFull
from hive.ids import QueueName, TenantId, new_process_id
from hive.tasks import Registry, task
from hive.testing.manual_clock import ManualClock

QUEUE = QueueName("many")
ACME = TenantId("acme")


class Slow(Memory):
    """Takes a part only once the next one was made; ``most``: so many messages, then it is full."""

    def __init__(self, most: int = 1_000_000) -> None:
        super().__init__(ManualClock())
        self.parts: list[int] = []
        self.made = 0
        self.made_before_it_was_written: list[int] = []
        self.most = most

    async def publish(self, messages: Sequence[Message], **options: Any) -> list[Published]:
        await anyio.sleep(0.01)
        self.made_before_it_was_written.append(self.made)
        if sum(self.parts) + len(messages) > self.most:
            raise QueueFull("full")
        self.parts.append(len(messages))
        return await super().publish(messages, **options)


def client_of(broker: Slow) -> tuple[Client, Any]:
    registry = Registry()

    @task(queue=QUEUE, into=registry)
    async def count(context: Context, n: int) -> None: ...

    return Client(routes={QUEUE: broker}, registry=registry), count


def many(broker: Slow, client: Client, count: Any, number: int, fails_at: int = -1) -> Iterator[Message]:
    for n in range(number):
        if n == fails_at:
            raise LookupError("no more")
        broker.made += 1
        yield client.message(count, {"n": n}, tenant=ACME)


async def test_all_arrive_in_order_and_parts_are_made_while_others_are_written():
    broker = Slow()
    client, count = client_of(broker)
    ids = await client.publish_all(many(broker, client, count, 2 * PART + 7))
    assert broker.parts == [PART, PART, 7]
    assert broker.made_before_it_was_written == [2 * PART, 2 * PART + 7, 2 * PART + 7]
    claimed = await broker.claim(QUEUE, new_process_id(), 3 * PART)
    assert [each.args["n"] for each in claimed] == list(range(2 * PART + 7))
    assert [each.id for each in claimed] == ids
    assert await client.publish_all([]) == []


async def test_what_publish_raises_is_raised_and_parts_before_stay():
    broker = Slow(most=2 * PART)
    client, count = client_of(broker)
    with pytest.raises(QueueFull):
        await client.publish_all(many(broker, client, count, 5 * PART))
    assert (await broker.depth(QUEUE)).waiting == 2 * PART
    assert broker.made <= 4 * PART, "nothing is made for a queue that is full"


async def test_what_the_messages_raise_is_raised():
    broker = Slow()
    client, count = client_of(broker)
    with pytest.raises(LookupError):
        await client.publish_all(many(broker, client, count, 5 * PART, fails_at=2 * PART + 1))
    assert broker.parts in ([PART], [PART, PART])
