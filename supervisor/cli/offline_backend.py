"""What the API stands on while no hive runs: the database alone. Imported only then, since it is heavy."""

from collections.abc import Sequence

from hive.broker.ledger import Ledger
from hive.broker.port import Broker
from hive.client import Client
from hive.errors import Conflict
from hive.ids import QueueName, TenantId
from hive.ingest.attempts import Attempts
from hive.ingest.index.search import SearchHits
from hive.ingest.pairs import Pairs
from hive.settings import Settings
from hive.store.postgres import Database
from hive.store.tenants import Tenants
from hive.tasks import Registry
from probes.health import Verdict
from supervisor.cli.place import Place
from supervisor.http.backend import Backend
from supervisor.http.roots import FileRoots
from supervisor.service import ServiceView


class _Down:
    """The parts of a hive that are not there."""

    content_type = "text/plain"

    def live(self) -> Verdict:
        return Verdict(ok=True)

    def ready(self) -> Verdict:
        return Verdict(ok=False, reasons=("no hive is running",))

    def render(self) -> bytes:
        return b""

    async def run(self, tenant: TenantId, query: str, limit: int = 10) -> SearchHits:
        raise Conflict("no hive is running", remedy="start it with `hive run`")

    def seal(self, plain: bytes) -> bytes:
        raise Conflict("no hive is running", remedy="start it with `hive run`")

    def unseal(self, sealed: bytes) -> bytes:
        raise Conflict("no hive is running", remedy="start it with `hive run`")

    def services(self) -> Sequence[ServiceView]:
        return ()

    def drain(self) -> None:
        raise Conflict("no hive is running")


def backend_over(database: Database, settings: Settings, place: Place) -> Backend:
    """The API's backend over ``database`` alone: every ledger queue, no stream, no pool."""
    ledger = Ledger(
        database,
        lease_seconds=settings.leases.delivery_seconds,
        crashes=settings.crashes,
        max_depth={QueueName(queue): most for queue, most in settings.limits.items()},
    )
    queues = [queue for pool in settings.pools.values() for queue in pool.ledger]
    if not settings.redis.enabled:
        queues += [queue for pool in settings.pools.values() for queue in pool.stream]
    routes: dict[QueueName, Broker] = {QueueName(queue): ledger for queue in queues}
    down = _Down()
    return Backend(
        settings=settings,
        database=database,
        tenants=Tenants(database),
        pairs=Pairs(database, down),
        attempts=Attempts(database),
        search=down,
        routes=routes,
        ledger=ledger,
        client=Client(routes=routes, registry=Registry()),
        pools={},
        services=down.services,
        health=down,
        metrics=down,
        roots=FileRoots(settings.connectors.files.roots, place.state_dir),
        drain=down.drain,
    )
