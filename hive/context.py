"""What a handler is given: its tenant, its transaction, its progress, and a way to send more work."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

import anyio
from anyio.from_thread import BlockingPortal

from hive.broker.port import Broker, BrokerKind, Delivery, TransactionalBroker
from hive.errors import ConfigurationError, LeaseLost
from hive.ids import MessageId, TenantId
from hive.providers import ProviderCall, Providers
from hive.store.connection import Connection

if TYPE_CHECKING:
    from hive.client import Client

T = TypeVar("T")


class Stores(Protocol):
    """Where transactions come from: ``hive.store.postgres.Database``."""

    def transaction(self, tenant: TenantId | None = None) -> AbstractAsyncContextManager[Connection]:
        """A transaction; with ``tenant``, its search path is that tenant's."""
        ...


class Context:
    """One run of one job, as its handler sees it.

    ``idempotency_key`` is the same for every run of this message: hand it to whatever lies outside Postgres.
    """

    def __init__(
        self,
        *,
        delivery: Delivery,
        broker: Broker,
        stores: Stores,
        client: "Client",
        services: Mapping[type, object],
    ) -> None:
        self.delivery = delivery
        self.client = client
        self._broker = broker
        self._stores = stores
        self._services = services
        self._settled = False
        self._stop_requested = False
        self._stopping: anyio.Event | None = None
        self._portal: BlockingPortal | None = None

    @property
    def id(self) -> MessageId:
        return self.delivery.id

    @property
    def tenant(self) -> TenantId | None:
        return self.delivery.tenant

    @property
    def attempt(self) -> int:
        """Which run this is, from 1."""
        return self.delivery.attempt

    @property
    def fence(self) -> int:
        return self.delivery.fence

    @property
    def idempotency_key(self) -> str:
        return f"{self.delivery.task}:{self.delivery.id}"

    @property
    def settled(self) -> bool:
        """Whether ``transaction()`` has committed, and with it the job."""
        return self._settled

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Connection]:
        """The exactly-once way to an effect: it commits together with the job's completion, or not at all.

        May be entered to its end once. Raises ``LeaseLost`` when another process has taken the job over; an
        error in the body rolls everything back, the completion included. Only on ledger queues.
        """
        if self._broker.kind is not BrokerKind.LEDGER:
            raise ConfigurationError(
                f"task {self.delivery.task}: context.transaction() needs a ledger queue",
                remedy=f"move it off {self.delivery.queue}, or make it idempotent by context.idempotency_key",
            )
        if self._settled:
            raise LeaseLost("this job is settled already: its transaction() has committed")
        broker = cast(TransactionalBroker, self._broker)
        async with broker.transaction(self.delivery) as connection:
            yield connection
        self._settled = True

    def connection(self) -> AbstractAsyncContextManager[Connection]:
        """A transaction in this job's tenant that does *not* settle the job: for reading and preparing."""
        return self._stores.transaction(self.tenant)

    async def progress(self, stage: str, done: int | None = None, total: int | None = None) -> None:
        """Record how far the job is. Raises ``LeaseLost`` when the job is no longer ours."""
        if not await self._broker.progress(self.delivery, stage=stage, done=done, total=total):
            raise LeaseLost(f"job {self.id} was taken over")

    @property
    def stopping(self) -> anyio.Event:
        """Set when this job must make room: wait for it to store a checkpoint, then raise ``HandedBack``.

        A handler that never looks at it is cancelled at once instead; one that does gets
        ``shutdown.cancel_seconds`` first. For handlers on the loop.
        """
        if self._stopping is None:
            self._stopping = anyio.Event()
            if self._stop_requested:
                self._stopping.set()
        return self._stopping

    @property
    def stop_requested(self) -> bool:
        """Whether this job should end: cancelled, lost, late or in the way. A thread must poll this."""
        return self._stop_requested

    @property
    def listens(self) -> bool:
        """Whether the handler has looked at ``stopping``."""
        return self._stopping is not None

    def request_stop(self) -> None:
        """Set ``stopping`` and ``stop_requested``. The pool calls this, on the loop."""
        self._stop_requested = True
        if self._stopping is not None:
            self._stopping.set()

    @property
    def portal(self) -> BlockingPortal:
        """The loop, as a plain ``def`` handler reaches it from its thread.

        ``context.portal.call(context.progress, "reading", 1, 9)`` awaits in the loop;
        ``with context.portal.wrap_async_context_manager(context.transaction()) as connection:`` enters.
        """
        if self._portal is None:
            raise ConfigurationError(
                f"task {self.delivery.task}: only plain `def` handlers have a portal", remedy="use await"
            )
        return self._portal

    def attach_portal(self, portal: BlockingPortal) -> None:
        """Give a handler that runs in a thread its way to the loop. The pool calls this."""
        self._portal = portal

    def provider(
        self, name: str, *, account: str | None = None, patience_seconds: float | None = None
    ) -> AbstractAsyncContextManager[ProviderCall]:
        """One call to a foreign service that bears only so much at once: wait for its turn, then make it.

        ::

            async with context.provider("openai") as call, session.post(url, json=body) as answer:
                call.check(answer.status, answer.headers)  # raises Throttled at 429 and 503

        Let ``Throttled`` leave the handler: the job waits, and burns no attempt. See ``hive.providers`` for
        what else it does, and ``Providers.call`` for the options. In a plain ``def``:
        ``with context.portal.wrap_async_context_manager(context.provider("openai")) as call:``.
        Not in child processes: their context reaches nothing of hive's.
        """
        return self.service(Providers).call(name, account=account, patience_seconds=patience_seconds)

    def service(self, kind: type[T]) -> T:
        """The process's one object of this type, such as an embedding client."""
        try:
            return cast(T, self._services[kind])
        except KeyError:
            raise ConfigurationError(f"no {kind.__name__} is configured in this process") from None
