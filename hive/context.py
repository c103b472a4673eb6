"""What a handler is given: its tenant, its transaction, its progress, and a way to send more work."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from hive.broker.port import Broker, BrokerKind, Delivery, TransactionalBroker
from hive.errors import ConfigurationError, LeaseLost
from hive.ids import MessageId, TenantId
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

    def service(self, kind: type[T]) -> T:
        """The process's one object of this type, such as an embedding client."""
        try:
            return cast(T, self._services[kind])
        except KeyError:
            raise ConfigurationError(f"no {kind.__name__} is configured in this process") from None
