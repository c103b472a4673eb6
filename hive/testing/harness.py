"""What a broker's test gives the contract suite: the broker, other processes' views of it, and time."""

from typing import Any, Protocol

from hive.broker.port import Broker, Depth, Message
from hive.ids import QueueName, TaskName, new_message_id

QUEUE = QueueName("work")


class Harness(Protocol):
    """One store with brokers on it."""

    broker: Broker

    async def peer(self) -> Broker:
        """The same store as another process sees it."""
        ...

    async def pass_time(self, seconds: float) -> None:
        """Let the store's time pass: for real stores by moving the stored times back."""
        ...

    async def expect_depth(self, *, waiting: int, delayed: int, running: int) -> Depth:
        """Assert the counts of ``QUEUE``, as the broker gives them and as a recount of the store does."""
        ...


def message(queue: str = QUEUE, task: str = "task", **fields: Any) -> Message:
    """A message with all that a test does not care about filled in."""
    return Message(
        id=new_message_id(),
        queue=QueueName(queue),
        task=TaskName(task),
        tenant=fields.pop("tenant", None),
        args=fields.pop("args", {}),
        **fields,
    )


def assert_depth(depth: Depth, *, waiting: int, delayed: int, running: int) -> Depth:
    """Compare the three counts at once, so that a failure shows all of them."""
    assert (depth.waiting, depth.delayed, depth.running) == (waiting, delayed, running)
    return depth
