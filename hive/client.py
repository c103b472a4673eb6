"""Enqueue, cancel and inspect: what an application holds to hand hive its work."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from hive.broker.port import Broker, Lane, Message
from hive.errors import ConfigurationError, InvalidInput, TenantMissing
from hive.events import Events, JobPublished
from hive.ids import MessageId, QueueName, TenantId, new_message_id
from hive.store.connection import Connection
from hive.tasks import Registry, Task
from hive.tenancy import current_tenant_or_none

MAX_ARGUMENT_BYTES = 64 * 1024

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # ASCII: a character is a byte


class Client:
    """Sends messages to the broker that carries their queue.

    ``routes`` maps each queue to its broker; a task on a queue without one is refused, never parked.
    """

    def __init__(
        self, *, routes: Mapping[QueueName, Broker], registry: Registry, events: Events | None = None
    ) -> None:
        self.routes = routes
        self.registry = registry
        self._events = events

    def message(
        self,
        task: Task[...],
        arguments: Mapping[str, Any],
        *,
        tenant: TenantId | None = None,
        key: str | None = None,
        while_running: Literal["rerun", "drop"] = "rerun",
        lane: Lane | None = None,
        delay_seconds: float = 0.0,
        expires_seconds: float | None = None,
        parent: MessageId | None = None,
    ) -> Message:
        """A message for ``task``, checked: its tenant, its arguments, their size.

        ``tenant`` defaults to the current one; a tenant task without any raises ``TenantMissing``.
        """
        options = task.options
        effective: TenantId | None = None
        if options.scope == "tenant":
            effective = tenant or current_tenant_or_none()
            if effective is None:
                raise TenantMissing(f"task {task.name} runs for a tenant, and none was given")
        task.check(arguments)
        try:
            size = len(_ENCODER.encode(arguments))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"arguments of {task.name}", f"not JSON: {error}") from error
        if size > MAX_ARGUMENT_BYTES:
            raise InvalidInput(
                f"arguments of {task.name}",
                f"{size} bytes; a message holds {MAX_ARGUMENT_BYTES}",
                remedy="store the content and send its id",
            )
        return Message(
            id=new_message_id(),
            queue=options.queue,
            task=task.name,
            tenant=effective,
            args=dict(arguments),
            lane=options.lane if lane is None else lane,
            key=key,
            while_running=while_running,
            delay_seconds=delay_seconds,
            expires_seconds=expires_seconds,
            max_attempts=options.retry.max_attempts,
            parent=parent,
        )

    async def enqueue(
        self,
        task: Task[...],
        arguments: Mapping[str, Any],
        *,
        connection: Connection | None = None,
        **options: Any,
    ) -> MessageId:
        """Enqueue one message; returns its id, or the waiting one's that holds the same key.

        With ``connection`` (an open transaction) the message exists exactly if that transaction commits.
        """
        message = self.message(task, arguments, **options)
        published = await self.publish([message], connection=connection)
        return published[0]

    async def publish(
        self, messages: Sequence[Message], *, connection: Connection | None = None
    ) -> list[MessageId]:
        """Enqueue messages in bulk, grouped by their brokers; returns their ids in order."""
        ids: dict[int, MessageId] = {}
        by_broker: dict[int, tuple[Broker, list[int]]] = {}
        for position, message in enumerate(messages):
            broker = self._broker_of(message.queue)
            by_broker.setdefault(id(broker), (broker, []))[1].append(position)
        for broker, positions in by_broker.values():
            answers = await broker.publish([messages[at] for at in positions], connection=connection)
            for at, answer in zip(positions, answers, strict=True):
                ids[at] = answer.id
        if self._events is not None:
            counts: dict[QueueName, int] = {}
            for message in messages:
                counts[message.queue] = counts.get(message.queue, 0) + 1
            for queue, count in counts.items():
                self._events.publish(JobPublished(queue=queue, count=count))
        return [ids[at] for at in range(len(messages))]

    def _broker_of(self, queue: QueueName) -> Broker:
        try:
            return self.routes[queue]
        except KeyError:
            raise ConfigurationError(
                f"queue {queue!r} has no pool", remedy="name it in a pool's `ledger` or `stream` list"
            ) from None
