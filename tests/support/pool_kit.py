"""A worker pool over the memory broker, with what tests need to drive and watch it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio

from hive.broker.memory import Memory
from hive.broker.port import Broker, Delivery, Verdict
from hive.client import Client
from hive.clock import Clock, SystemClock
from hive.context import Context
from hive.errors import StoreDown
from hive.events import Events, JobSettled, JobStarted, SlotWrittenOff
from hive.ids import MessageId, ProcessId, QueueName, TenantId, new_process_id
from hive.settings import Crashes, Leases, Pool, Shutdown
from hive.store.connection import Connection
from hive.tasks import Registry, Task, task
from pools.children import ChildRunner
from pools.pool import WorkerPool

ACME = TenantId("acme")


class NoStores:
    """For contexts whose handlers open no transaction."""

    def transaction(self, tenant: TenantId | None = None) -> AbstractAsyncContextManager[Connection]:
        raise AssertionError("this test has no database")


class Wavering(Memory):
    """The memory broker behind a line that can be cut. ``calls`` counts what was asked of it."""

    def __init__(self, clock: Clock, *, lease_seconds: float = 60.0) -> None:
        super().__init__(clock, lease_seconds=lease_seconds)
        self.away = False
        self.calls: Counter[str] = Counter()
        self.batches: list[int] = []

    def _answer(self, call: str) -> None:
        self.calls[call] += 1
        if self.away:
            raise StoreDown("memory", call)

    async def claim(self, queue: QueueName, owner: ProcessId, limit: int) -> list[Delivery]:
        self._answer("claim")
        return await super().claim(queue, owner, limit)

    async def renew(self, deliveries: Any) -> Any:
        self._answer("renew")
        return await super().renew(deliveries)

    async def mark_started(self, deliveries: Any) -> None:
        self._answer("mark_started")
        await super().mark_started(deliveries)

    async def settle(self, settlements: Any) -> list[Verdict]:
        self._answer("settle")
        self.batches.append(len(settlements))
        return await super().settle(settlements)

    async def cancel_requested(self, deliveries: Any) -> Any:
        self._answer("cancel_requested")
        return await super().cancel_requested(deliveries)


class Rig:
    """One pool and all around it. ``labels``: the outcomes reported so far, by job."""

    def __init__(
        self,
        *,
        slots: int = 4,
        prefetch: int = 1,
        queues: tuple[str, ...] = ("work",),
        broker: Broker | None = None,
        clock: Clock | None = None,
        lease_seconds: float = 60.0,
        renew_seconds: float = 20.0,
        doubt_margin_seconds: float = 10.0,
        cancel_seconds: float = 0.3,
        children: ChildRunner | None = None,
        stores: Any = None,
        routes: Mapping[QueueName, Broker] | None = None,
        tenant: TenantId = ACME,
        owner: ProcessId | None = None,
        services: Mapping[type, object] | None = None,
    ) -> None:
        self.tenant = tenant
        self.services: Mapping[type, object] = services or {}
        self.clock = clock or SystemClock()
        self.memory = Wavering(self.clock, lease_seconds=lease_seconds)
        self.broker = broker or self.memory
        self.registry = Registry()
        self.events = Events()
        self.owner = owner or new_process_id()
        self.labels: dict[MessageId, str] = {}
        self.settled: list[JobSettled] = []
        self.started: list[JobStarted] = []
        self.lost_slots: list[SlotWrittenOff] = []
        self.events.subscribe(JobSettled, self._note)
        self.events.subscribe(JobStarted, self.started.append)
        self.events.subscribe(SlotWrittenOff, self.lost_slots.append)
        self.routes: Mapping[QueueName, Broker] = (
            {QueueName(queue): self.broker for queue in queues} if routes is None else routes
        )
        self.client = Client(routes=self.routes, registry=self.registry)
        self.stores = stores or NoStores()
        self.pool = WorkerPool(
            "test",
            Pool(slots=slots, prefetch=prefetch, ledger=tuple(self.routes) or queues),
            routes=self.routes,
            registry=self.registry,
            contexts=self.context,
            owner=self.owner,
            leases=Leases(
                delivery_seconds=lease_seconds,
                renew_seconds=renew_seconds,
                doubt_margin_seconds=doubt_margin_seconds,
            ),
            shutdown=Shutdown(grace_seconds=5, cancel_seconds=cancel_seconds),
            crashes=Crashes(),
            events=self.events,
            clock=self.clock,
            children=children,
        )

    def _note(self, event: JobSettled) -> None:
        self.settled.append(event)
        self.labels[event.job] = event.outcome

    def context(self, delivery: Delivery, broker: Broker) -> Context:
        return Context(
            delivery=delivery,
            broker=broker,
            stores=self.stores,
            client=self.client,
            services=self.services,
        )

    def count(self, label: str) -> int:
        """How many jobs came to this outcome."""
        return sum(event.outcome == label for event in self.settled)

    async def send(self, task: Task[Any], count: int = 1, **arguments: Any) -> list[MessageId]:
        """Publish the same message several times, for the rig's tenant where the task needs one."""
        tenant = self.tenant if task.options.scope == "tenant" else None
        messages = [self.client.message(task, arguments, tenant=tenant) for _ in range(count)]
        return await self.client.publish(messages)

    async def _sweep(self) -> None:
        while True:
            await self.broker.sweep(list(self.routes))
            await anyio.sleep(0.01)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[WorkerPool]:
        """The pool at work, and somebody who sweeps; cancelled at the end."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._sweep)
            group.start_soon(self.pool.run)
            try:
                yield self.pool
            finally:
                group.cancel_scope.cancel()


def declare(rig: Rig, function: Any, queue: str = "work", **options: Any) -> Any:
    """``function`` as a task of the rig."""
    return task(queue=queue, into=rig.registry, **options)(function)


class Gate:
    """Handlers that wait here until let through, and count themselves."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside = 0
        self.most = 0
        self.entered = 0

    async def __call__(self, context: Context) -> None:
        self.entered += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
