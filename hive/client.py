"""Enqueue, cancel and inspect: what an application holds to hand hive its work."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import anyio
import anyio.lowlevel

from hive.broker.port import Broker, Lane, Message, WhileRunning, Written
from hive.broker.wire import written
from hive.errors import ConfigurationError, InvalidInput, TenantMissing
from hive.events import Events, JobPublished
from hive.ids import MessageId, QueueName, TaskName, TenantId, new_message_id
from hive.store.connection import Connection
from hive.tasks import Registry, Task
from hive.tenancy import current_tenant_or_none

PART: Final = 1_000
"""So many messages are made at a time: 2 to 5 ms in which the loop does nothing else."""

Alike = tuple[
    *tuple[QueueName, TaskName, TenantId | None, Lane, str | None, WhileRunning],
    *tuple[str | None, int, float, float | None, int, MessageId | None, str | None],
]
"""The fields of a message but for its id and arguments."""


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
        while_running: WhileRunning = "rerun",
        lane: Lane | None = None,
        delay_seconds: float = 0.0,
        expires_seconds: float | None = None,
        parent: MessageId | None = None,
    ) -> Message:
        """A message for ``task``, checked: its tenant, its arguments, their size.

        ``tenant`` defaults to the current one; a tenant task without any raises ``TenantMissing``.
        """
        alike = _alike(
            task,
            tenant=tenant,
            lane=lane,
            key=key,
            while_running=while_running,
            delay_seconds=delay_seconds,
            expires_seconds=expires_seconds,
            parent=parent,
        )
        return Message(new_message_id(), _checked(task, arguments), *alike)

    def messages(
        self,
        task: Task[...],
        arguments: Iterable[Mapping[str, Any]],
        *,
        tenant: TenantId | None = None,
        lane: Lane | None = None,
        delay_seconds: float = 0.0,
        expires_seconds: float | None = None,
        parent: MessageId | None = None,
    ) -> Iterator[Message]:
        """A ``message`` of ``task`` for each of ``arguments``, made as it is asked for, for ``publish_all``.

        The options hold for all, and are looked at once: half of the time of one by one. Raises
        ``TenantMissing`` at once, and what is wrong with arguments when their turn comes.
        """
        alike = _alike(
            task,
            tenant=tenant,
            lane=lane,
            delay_seconds=delay_seconds,
            expires_seconds=expires_seconds,
            parent=parent,
        )
        return (Message(new_message_id(), _checked(task, each), *alike) for each in arguments)

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
        queues = [each.queue for each in messages]
        brokers = {queue: self._broker_of(queue) for queue in dict.fromkeys(queues)}
        carriers = {id(each): each for each in brokers.values()}
        if len(carriers) == 1:  # which most batches have
            (broker,) = carriers.values()
            ids = [each.id for each in await broker.publish(messages, connection=connection)]
        else:
            ids = [each.id for each in messages]
            for broker in carriers.values():
                positions = [at for at, each in enumerate(messages) if brokers[each.queue] is broker]
                mine = [messages[at] for at in positions]
                answers = await broker.publish(mine, connection=connection)
                for at, answer in zip(positions, answers, strict=True):
                    ids[at] = answer.id
        if self._events is not None:
            for queue, count in Counter(queues).items():
                self._events.publish(JobPublished(queue=queue, count=count))
        return ids

    async def publish_all(
        self, messages: Iterable[Message], *, connection: Connection | None = None
    ) -> list[MessageId]:
        """Enqueue any number of messages; returns their ids in order. The fastest way for many.

        ``messages`` may be a generator: a thousand are made while the thousand before are written. Each part
        is accepted as a whole, and parts before a failing one stay; with ``connection`` all stand or fall
        with its transaction. Raises what ``publish`` raises. Cancelled, or where ``messages`` raises, the
        part under way may or may not be written.
        """
        ids: list[MessageId] = []
        source = iter(messages)

        async def send(part: Sequence[Message]) -> None:
            ids.extend(await self.publish(part, connection=connection))

        try:
            part = list(islice(source, PART))
            while part:
                async with anyio.create_task_group() as group:
                    group.start_soon(send, part)
                    await anyio.lowlevel.checkpoint()  # the part is on its way before the next is made
                    part = list(islice(source, PART))
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return ids

    def _broker_of(self, queue: QueueName) -> Broker:
        try:
            return self.routes[queue]
        except KeyError:
            raise ConfigurationError(
                f"queue {queue!r} has no pool", remedy="name it in a pool's `ledger` or `stream` list"
            ) from None


def _alike(
    task: Task[...],
    *,
    tenant: TenantId | None,
    lane: Lane | None,
    key: str | None = None,
    while_running: WhileRunning = "rerun",
    delay_seconds: float,
    expires_seconds: float | None,
    parent: MessageId | None,
) -> Alike:
    """What messages of ``task`` with the same options have in common, the tenant checked."""
    options = task.options
    effective: TenantId | None = None
    if options.scope == "tenant":
        effective = tenant or current_tenant_or_none()
        if effective is None:
            raise TenantMissing(f"task {task.name} runs for a tenant, and none was given")
    return (
        *(options.queue, options.name, effective, options.lane if lane is None else lane, key, while_running),
        *(None, 1, delay_seconds, expires_seconds, options.retry.max_attempts, parent, None),
    )


def _checked(task: Task[...], arguments: Mapping[str, Any]) -> Written:
    task.check(arguments)
    try:
        return written(arguments)
    except InvalidInput as error:
        problem = error.message.removeprefix(f"{error.field}: ")
        raise InvalidInput(f"arguments of {task.name}", problem, remedy=error.remedy) from error
