"""What the API stands on: every object it needs, built by the assembly and handed over as one value.

The protocols name only what the API uses of pools, health and search, so that a hive that is down can offer
the rest (``supervisor.cli.offline``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hive.broker.port import Broker, TransactionalBroker
from hive.client import Client
from hive.ids import QueueName, TenantId
from hive.ingest.attempts import Attempts
from hive.ingest.index.search import SearchHits
from hive.ingest.pairs import Pairs
from hive.settings import Settings
from hive.store.postgres import Database
from hive.store.tenants import Tenants
from pools.run import RunningJob
from pools.slots import Slots
from supervisor.http.roots import FileRoots
from supervisor.service import ServiceView


class PoolView(Protocol):
    """A pool, seen from outside: ``pools.pool.WorkerPool``."""

    @property
    def slots(self) -> Slots: ...
    @property
    def ready(self) -> bool: ...
    def running(self) -> Sequence[RunningJob]: ...


class Verdict(Protocol):
    """Whether all is well, and if not, why."""

    @property
    def ok(self) -> bool: ...
    @property
    def reasons(self) -> Sequence[str]: ...


class Health(Protocol):
    """What ``/livez`` and ``/readyz`` ask. Both must answer from memory, without asking a store."""

    def live(self) -> Verdict: ...
    def ready(self) -> Verdict: ...


class Scrape(Protocol):
    """What a Prometheus scrape gets: ``probes.metrics.Metrics``."""

    content_type: str

    def render(self) -> bytes: ...


class Searching(Protocol):
    """Finds documents of one tenant: ``hive.ingest.index.search.Search``."""

    async def run(self, tenant: TenantId, query: str, limit: int = 10) -> SearchHits: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """``pools``: this process's, by name. ``drain``: begin what SIGTERM begins; returns at once."""

    settings: Settings
    database: Database
    tenants: Tenants
    pairs: Pairs
    attempts: Attempts
    search: Searching
    routes: Mapping[QueueName, Broker]
    ledger: TransactionalBroker
    client: Client
    pools: Mapping[str, PoolView]
    services: Callable[[], Sequence[ServiceView]]
    health: Health
    metrics: Scrape
    roots: FileRoots
    drain: Callable[[], None]
