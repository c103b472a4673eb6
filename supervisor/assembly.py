"""Every object of a running hive, made in one place and handed to the others. Nothing here runs yet.

Wiring is code, not configuration: whoever wants to know what a part is given reads it here.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hive.broker.ledger import Ledger
from hive.broker.port import Broker, Delivery
from hive.broker.streams import Streams
from hive.client import Client
from hive.clock import Clock
from hive.context import Context
from hive.events import Events
from hive.ids import ProcessId, QueueName
from hive.ingest.attempts import Attempts
from hive.ingest.embedding import Embedder
from hive.ingest.index.postgres import PostgresIndex
from hive.ingest.index.search import Search
from hive.ingest.pairs import Pairs
from hive.ingest.services import IngestServices
from hive.locks.port import LeaderLease
from hive.providers import Providers
from hive.settings import Monitoring, Settings
from hive.store.heartbeat import Heartbeat, PostgresHeartbeat, RedisHeartbeat
from hive.store.sealing import Sealer
from hive.store.tenants import Tenants
from hive.tasks import Registry
from pools.fetch.parent import FetchChildren
from pools.fetch.zygote import Zygote
from pools.pool import WorkerPool
from probes.health import Health
from probes.liveness import ProbeFiles
from probes.loop import LoopMonitor
from probes.metrics import Metrics
from supervisor.beat import Beat
from supervisor.carriers import carriers
from supervisor.gauges import add_gauges
from supervisor.give_ups import GiveUps
from supervisor.http.backend import Backend
from supervisor.http.local_token import local_token
from supervisor.http.roots import FileRoots
from supervisor.http.server import HttpServer
from supervisor.instance import Instance
from supervisor.leader import Leadership
from supervisor.leases import open_lease
from supervisor.model_service import ModelServer, require_model
from supervisor.record import ProcessRecord
from supervisor.schedules import schedules_of
from supervisor.service import Service, pool_service
from supervisor.stores import Stores
from supervisor.sweeper import Pruner, Sweeper
from supervisor.tree import ServiceTree
from supervisor.watchdog import HEARTBEAT_TASK, Chain, Watchdog

if TYPE_CHECKING:
    from aiohttp import web

TENANT_CHANNEL = "hive_tenants"
INDEXING_TICK = "check_for_indexing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """One hive, put together. ``brokers`` by name, each with the queues it carries."""

    settings: Settings
    clock: Clock
    events: Events
    process: ProcessId
    stores: Stores
    tenants: Tenants
    sealer: Sealer
    pairs: Pairs
    attempts: Attempts
    embedder: Embedder
    brokers: Mapping[str, tuple[Broker, Sequence[QueueName]]]
    ledger: Ledger
    client: Client
    pools: Mapping[str, WorkerPool]
    fetcher: FetchChildren
    model: ModelServer | None
    record: ProcessRecord
    leadership: Leadership
    beat: Beat
    sweeper: Sweeper
    pruner: Pruner
    give_ups: GiveUps
    watchdog: Watchdog
    health: Health
    metrics: Metrics
    loop: LoopMonitor
    files: ProbeFiles
    roots: FileRoots
    http: HttpServer

    async def watch_tenants(self) -> None:
        """A service: tell beat at once when a tenant was added or removed."""
        await self.stores.database.listen([TENANT_CHANNEL], lambda _channel: self.beat.tenants_changed())

    def background(self) -> list[Service]:
        """What must run before a pool consumes and after the last one has drained."""
        found = [Service(name=f"broker.{name}", run=broker.run) for name, (broker, _) in self.brokers.items()]
        found += [
            Service(name="children", run=self.fetcher.run, pulse=self.fetcher.pulse, critical=True),
            Service(name="give_ups", run=self.give_ups.run),
        ]
        return found

    def upkeep(self) -> list[Service]:
        """What looks after pools and messages while they run, and need not be there before."""
        return [
            Service(name="loop", run=self.loop.run),
            Service(name="probes", run=self.files.run, pulse=self.files.pulse),
            Service(name="record", run=self.record.run, pulse=self.record.pulse),
            Service(name="sweeper", run=self.sweeper.run, pulse=self.sweeper.pulse, critical=True),
        ]

    def models(self) -> list[Service]:
        """The model server. Jobs wait for it, and nothing else does."""
        return (
            [] if self.model is None else [Service(name="model", run=self.model.run, ready=self.model.ready)]
        )

    def pool_services(self) -> list[Service]:
        """A service for each pool."""
        return [
            Service(name=pool_service(name), run=pool.run, pulse=pool.pulse, critical=True)
            for name, pool in self.pools.items()
        ]

    def leading(self) -> list[Service]:
        """The election, and what only the leader does. Stopped first."""

        async def beat() -> None:
            await self.leadership.while_leading(self.beat.run, pulse=self.beat.pulse)

        async def prune() -> None:
            await self.leadership.while_leading(self.pruner.run, pulse=self.pruner.pulse)

        return [
            Service(name="leader", run=self.leadership.run, pulse=self.leadership.pulse, critical=True),
            Service(name="beat", run=beat, pulse=self.beat.pulse, critical=True),
            Service(name="pruner", run=prune, pulse=self.pruner.pulse),
            Service(name="tenants", run=self.watch_tenants),
            Service(name="watchdog", run=self.watchdog.run, pulse=self.watchdog.pulse),
        ]


async def assemble(
    settings: Settings,
    *,
    stores: Stores,
    instance: Instance,
    process: ProcessId,
    zygote: Zygote,
    tree: ServiceTree,
    registry: Registry,
    events: Events,
    clock: Clock,
    drain: Callable[[], None],
) -> Assembly:
    """Make everything. Raises ConfigurationError for what does not fit, StoreDown from the lease."""
    database = stores.database
    state = settings.process.state_dir
    tenants = Tenants(
        database,
        model=settings.embedding.model,
        dimension=settings.embedding.dimension,
        language=settings.search.language,
    )
    limits = {QueueName(queue): most for queue, most in settings.limits.items()}
    ledger = Ledger(
        database,
        lease_seconds=settings.leases.delivery_seconds,
        crashes=settings.crashes,
        max_depth=limits,
        events=events,
    )
    streams = (
        Streams(
            stores.redis,
            database,
            lease_seconds=settings.leases.delivery_seconds,
            crashes=settings.crashes,
            max_depth=limits,
            events=events,
        )
        if stores.redis is not None
        else None
    )
    brokers = carriers(settings, ledger, streams)
    routes: dict[QueueName, Broker] = {
        queue: broker for broker, queues in brokers.values() for queue in queues
    }
    client = Client(routes=routes, registry=registry, events=events)

    providers = Providers(settings.providers, events=events, clock=clock)
    model: ModelServer | None = None
    if settings.embedding.url:
        embedder = Embedder(settings.embedding, providers=providers)
    else:
        require_model()
        model = ModelServer(settings)
        embedder = Embedder(settings.embedding, socket_path=model.socket_path, providers=providers)
    index = PostgresIndex()
    sealer = Sealer.load(settings.secrets, state)
    pairs = Pairs(database, sealer)
    attempts = Attempts(database)
    roots = FileRoots(settings.connectors.files.roots, state)
    fetcher = FetchChildren(zygote, settings.fetch, events, clock=clock, hidden=(state.absolute(),))
    heartbeat: Heartbeat = (
        RedisHeartbeat(stores.redis, settings.watchdog.heartbeat_seconds)
        if stores.redis is not None
        else PostgresHeartbeat(database, settings.watchdog.heartbeat_seconds)
    )
    services: dict[type, object] = {
        IngestServices: IngestServices(
            database=database,
            pairs=pairs,
            attempts=attempts,
            embedder=embedder,
            index=index,
            fetcher=fetcher,
            settings=settings,
            file_roots=roots.all,
        ),
        Providers: providers,
        Heartbeat: heartbeat,
        Events: events,
        Monitoring: settings.monitoring,
    }

    def context(delivery: Delivery, broker: Broker) -> Context:
        return Context(delivery=delivery, broker=broker, stores=database, client=client, services=services)

    pools = {
        name: WorkerPool(
            name,
            pool,
            routes=routes,
            registry=registry,
            contexts=context,
            owner=process,
            leases=settings.leases,
            shutdown=settings.shutdown,
            crashes=settings.crashes,
            events=events,
            clock=clock,
            children=fetcher,
        )
        for name, pool in settings.pools.items()
        if pool.slots > 0
    }

    lease: LeaderLease = await open_lease(settings, stores, instance=instance, process=process)
    leadership = Leadership(lease, settings.leases, clock=clock, events=events)

    beat = Beat(
        schedules_of(settings.schedules, registry, routes),
        client=client,
        tenants=tenants.active,
        settings=settings.beat,
        clock=clock,
    )
    health = Health(events, alive=tree.alive)
    for name, pool in pools.items():
        health.require(f"pool {name}", _consuming(name, pool))
    metrics = Metrics(clock)
    metrics.wire(events)
    loop = LoopMonitor(settings.probes, events)
    add_gauges(metrics, pools, providers, loop)
    backend = Backend(
        settings=settings,
        database=database,
        tenants=tenants,
        pairs=pairs,
        attempts=attempts,
        search=Search(database, embedder, index),
        routes=routes,
        ledger=ledger,
        client=client,
        pools=pools,
        services=tree.views,
        health=health,
        metrics=metrics,
        roots=roots,
        drain=drain,
    )
    return Assembly(
        settings=settings,
        clock=clock,
        events=events,
        process=process,
        stores=stores,
        tenants=tenants,
        sealer=sealer,
        pairs=pairs,
        attempts=attempts,
        embedder=embedder,
        brokers=brokers,
        ledger=ledger,
        client=client,
        pools=pools,
        fetcher=fetcher,
        model=model,
        record=ProcessRecord(
            database,
            instance=instance.id,
            process=process,
            slots={name: pool.slots.total for name, pool in pools.items()},
            clock=clock,
        ),
        leadership=leadership,
        beat=beat,
        sweeper=Sweeper(brokers, settings.leases, clock=clock),
        pruner=_pruner(settings, ledger, clock),
        give_ups=GiveUps(
            client,
            events,
            tick=registry.get(INDEXING_TICK),
            key=INDEXING_TICK,
            expires_seconds=settings.beat.tick_expires_seconds,
        ),
        watchdog=Watchdog(
            tree,
            settings.watchdog,
            chain=_chain(
                settings=settings,
                registry=registry,
                routes=routes,
                heartbeat=heartbeat,
                leadership=leadership,
                beat=beat,
            ),
            clock=clock,
            events=events,
        ),
        health=health,
        metrics=metrics,
        loop=loop,
        files=ProbeFiles(
            state,
            alive=tree.alive,
            ready=lambda: health.ready().ok,
            touch_seconds=settings.probes.touch_seconds,
            clock=clock,
        ),
        roots=roots,
        http=HttpServer(_api(backend, local_token(state), clock), settings.http, state),
    )


def _api(backend: Backend, token: str, clock: Clock) -> "Callable[[], web.Application]":
    def make() -> "web.Application":
        from supervisor.http.application import build  # with aiohttp, which no pool waits for

        return build(backend, token=token, clock=clock)

    return make


def _pruner(settings: Settings, ledger: Ledger, clock: Clock) -> Pruner:
    async def jobs() -> int:
        return await ledger.prune(
            completed_hours=settings.retention.completed_hours, failed_days=settings.retention.failed_days
        )

    return Pruner({"jobs": jobs}, clock=clock)


def _chain(
    *,
    settings: Settings,
    registry: Registry,
    routes: Mapping[QueueName, Broker],
    heartbeat: Heartbeat,
    leadership: Leadership,
    beat: Beat,
) -> Chain | None:
    """The heartbeat's links, or None where it is switched off."""
    period = settings.schedules.get(HEARTBEAT_TASK, 0.0)
    if period <= 0 or HEARTBEAT_TASK not in registry:
        return None
    queue = registry.get(HEARTBEAT_TASK).options.queue
    if queue not in routes:
        return None
    return Chain(
        heartbeat=heartbeat,
        expected_seconds=period * settings.beat.period_factor,
        broker=routes[queue],
        queue=queue,
        leading=lambda: leadership.leading,
        published_at=lambda: beat.published_at.get(HEARTBEAT_TASK),
    )


def _consuming(name: str, pool: WorkerPool) -> Callable[[], str | None]:
    return lambda: None if pool.ready else f"pool {name} does not consume"
