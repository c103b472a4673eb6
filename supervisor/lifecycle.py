"""A hive's life, from the lock on its state folder to the last file it removes.

Start::

    tasks registered and checked ─▶ zygote ─▶ state folder locked ─▶ stores, schema | code loaded
      ─▶ assembled ─▶ port bound ─▶ dead boots buried ─▶ services ─▶ pools ─▶ consuming
      ─▶ HTTP, upkeep, leader, beat ─▶ model

Shutdown, the other way round: not ready ─▶ beat and sweeps of the leader, leader lease ─▶ intake ─▶ drain
─▶ outcomes written ─▶ pools ─▶ everything else ─▶ row, clients, stores ─▶ files. A second signal shortens the
drain to nothing. What a start has begun is ended the same way when it fails half-way.
"""

import gc
import sys
from contextlib import AsyncExitStack
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from hive import logger
from hive.clock import SystemClock
from hive.errors import ConfigurationError, StoreDown
from hive.events import Events
from hive.ids import new_process_id
from hive.ingest.embedding import EmbedderBusy, EmbedderDown
from hive.logger import get_logger
from hive.settings import Settings
from hive.tasks import registry
from pools.drain import DrainReport
from pools.fetch.hardening import make_undumpable
from pools.fetch.zygote import Zygote
from supervisor import demonstration, logs
from supervisor.http.server import HttpServer
from supervisor.instance import Instance
from supervisor.service import FatalService, Service, pool_service
from supervisor.signals import Signals
from supervisor.stores import Stores, open_stores
from supervisor.tree import ServiceTree, leaves
from supervisor.validation import register_tasks, verify

if TYPE_CHECKING:
    from probes.health import Health
    from supervisor.assembly import Assembly

log = get_logger(__name__)

CLEAN, FATAL, GRACE_EXCEEDED = 0, 1, 4
SWITCH_SECONDS = 0.001
"""How long a thread that computes keeps the loop waiting. Python's own 5 ms add up."""

SECOND_STAGE_SECONDS = 1.0
"""How long what no pool needs lets the pools go first, at the most."""

CLOSE_SECONDS = 45.0
"""How long clients and embedded stores may take to close."""


async def run(settings: Settings, *, demo: bool = False) -> int:
    """Run one hive until it is told to stop; returns its exit code: 0, 1 (fatal service), 4 (grace exceeded).

    Raises ConfigurationError (2) or StoresMissing (3) when it cannot start.
    """
    logs.prepare(settings.log)
    sys.setswitchinterval(SWITCH_SECONDS)
    register_tasks(settings)
    if "structlog" in sys.modules:  # a module of the user's has loaded it, and may be the first to log
        logger.set_up()
    verify(settings, registry)
    settings = settings.model_copy(
        update={
            "process": settings.process.model_copy(
                update={"state_dir": settings.process.state_dir.absolute()}
            )
        }
    )
    async with AsyncExitStack() as stack:
        make_undumpable()
        zygote = Zygote.start()  # before the lock, of which a forked process would hold a copy
        stack.callback(zygote.stop)
        instance = await Instance.lock(settings.process.state_dir)
        stack.callback(instance.release)
        signals = await stack.enter_async_context(Signals())
        return await _Life(settings, instance, zygote, signals).run(demo=demo)


class _Life:
    def __init__(self, settings: Settings, instance: Instance, zygote: Zygote, signals: Signals) -> None:
        self._settings = settings
        self._instance = instance
        self._zygote = zygote
        self._signals = signals
        self._clock = SystemClock()
        self._events = Events()
        self._consuming = anyio.Event()

    async def run(self, *, demo: bool) -> int:
        """The whole life. A signal during the start ends it before it has begun."""
        code = CLEAN
        async with ServiceTree(self._settings.services, clock=self._clock, events=self._events) as tree:
            hive: Assembly | None = None
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._give_up_starting, group.cancel_scope)
                    hive = await self._assemble(tree)
                    await self._start(tree, hive)
                    group.cancel_scope.cancel()
                if not self._signals.graceful.is_set() and hive is not None:
                    code = await self._serve(tree, hive, demo=demo)
            except BaseExceptionGroup as error:
                first, *others = leaves(error)
                if others:
                    raise
                raise first from first.__cause__
            finally:
                if hive is not None:
                    with anyio.CancelScope(shield=True):
                        code = await self._end(tree, hive) or code
        return code

    async def _give_up_starting(self, scope: anyio.CancelScope) -> None:
        await self._signals.graceful.wait()
        scope.cancel()

    async def _assemble(self, tree: ServiceTree) -> "Assembly":
        stores: Stores | None = None
        try:
            async with anyio.create_task_group() as group:
                # While the stores answer, the rest of hive is loaded.
                group.start_soon(anyio.to_thread.run_sync, import_module, "supervisor.assembly")
                stores = await open_stores(self._settings, events=self._events, clock=self._clock)
            assert stores is not None
            from supervisor.assembly import assemble

            for service in stores.services():
                tree.add(service)
            return await assemble(
                self._settings,
                stores=stores,
                instance=self._instance,
                process=new_process_id(),
                zygote=self._zygote,
                tree=tree,
                registry=registry,
                events=self._events,
                clock=self._clock,
                drain=self._signals.stop,
            )
        except BaseException:
            if stores is not None:
                with anyio.CancelScope(shield=True):
                    for service in stores.services():
                        await _stop(tree, service.name)
                    await stores.close()
            raise

    async def _start(self, tree: ServiceTree, hive: "Assembly") -> None:
        hive.files.clear()
        hive.http.bind()  # a port in use is said before anything is consumed
        tree.add(Service(name="http", run=partial(self._answer, hive.http)))
        if self._settings.postgres.migrate_on_start:
            await hive.tenants.ensure_default()
        await self._bury_the_dead(hive)
        await self._check_model(hive)
        for service in (*hive.background(), *hive.pool_services()):
            tree.add(service)
        gc.freeze()  # so that the first collection walks over nothing of the start; see `_announce`
        gc.enable()
        hive.health.open()

    async def _answer(self, http: HttpServer) -> None:
        """A service: HTTP, which takes as long to load as all that pools need of the stores and hive."""
        with anyio.move_on_after(SECOND_STAGE_SECONDS):
            await self._consuming.wait()
        await http.run()

    async def _bury_the_dead(self, hive: "Assembly") -> None:
        """Earlier boots of this folder are dead for certain: what they held runs again at once."""
        boots = await hive.record.begin()
        for boot in boots:
            for name, (broker, _queues) in hive.brokers.items():
                if returned := await broker.owner_died(boot):
                    log.warning("start.brought_back", broker=name, messages=returned, boot=str(boot))
        if boots:
            await hive.record.buried(boots)

    async def _check_model(self, hive: "Assembly") -> None:
        """An external model of the wrong dimension is refused; one that is away is waited for by the jobs."""
        if hive.model is not None:
            return
        try:
            await hive.embedder.check(self._settings.embedding.dimension)
        except (EmbedderDown, EmbedderBusy) as error:
            log.warning("start.model_away", cause=error.message)

    async def _serve(self, tree: ServiceTree, hive: "Assembly", *, demo: bool) -> int:
        """From ready to the first signal, or to the end of a critical service."""
        code = CLEAN
        async with anyio.create_task_group() as group:
            group.start_soon(self._announce, tree, hive, demo)

            async def watch() -> None:
                nonlocal code
                try:
                    await tree.wait()
                except FatalService as error:
                    log.error("hive.fatal", service=error.service, cause=error.message)
                    code = FATAL
                    self._signals.graceful.set()

            group.start_soon(watch)
            await self._signals.graceful.wait()
            group.cancel_scope.cancel()
        return code

    async def _announce(self, tree: ServiceTree, hive: "Assembly", demo: bool) -> None:
        """The second stage: what no pool waits for, once they consume; then say so."""
        with anyio.move_on_after(SECOND_STAGE_SECONDS):
            await _ready(hive.health)
        self._consuming.set()
        for service in (*hive.upkeep(), *hive.leading()):
            tree.add(service)
        with anyio.move_on_after(SECOND_STAGE_SECONDS):
            await hive.http.serving()
        for service in hive.models():  # last: it keeps a processor busy for half a second
            tree.add(service)
        await _ready(hive.health)
        hive.files.run_once()
        if hive.sealer.made is not None:
            log.info("secrets.key_made", file=str(hive.sealer.made))
        await hive.http.serving()
        # What stands now stands to the end: no full collection has to walk over it again, for 50 ms each.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        log.info("hive.ready", port=hive.http.port, process=str(hive.process))
        if demo:
            try:
                await demonstration.present(hive)
            except (ConfigurationError, StoreDown) as error:
                log.warning("demo.failed", cause=error.message)

    async def _end(self, tree: ServiceTree, hive: "Assembly") -> int:
        """Shut down in order; returns the exit code. Every step is bounded."""
        hive.health.close("hive is stopping")
        hive.files.run_once()  # not ready any more, and alive to the end
        for name in ("watchdog", "beat", "pruner", "tenants"):
            await _stop(tree, name)
        with anyio.move_on_after(5):
            await hive.leadership.release()
        await _stop(tree, "leader")
        reports = await self._drain(tree, hive)
        for view in tree.views():
            if view.name not in {"http", "postgres", "valkey"}:
                await _stop(tree, view.name)
        await _stop(tree, "http")
        await hive.http.stop()  # where it was bound and never served
        with anyio.move_on_after(5):
            try:
                await hive.record.end()
            except StoreDown as error:
                log.info("stop.not_recorded", cause=error.message)
            await hive.embedder.close()
            await hive.leadership.close()
        for name in ("postgres", "valkey"):
            await _stop(tree, name)
        with anyio.move_on_after(CLOSE_SECONDS):
            await hive.stores.close()
        hive.files.clear()
        abandoned = sum(report.abandoned for report in reports)
        log.info("hive.stopped", abandoned=abandoned)
        return GRACE_EXCEEDED if abandoned else CLEAN

    async def _drain(self, tree: ServiceTree, hive: "Assembly") -> list[DrainReport]:
        """All pools at once; a second signal leaves them no grace."""
        for pool in hive.pools.values():
            pool.stop_intake()
        reports: list[DrainReport] = []
        running = {view.name for view in tree.views()}

        async def drain(name: str) -> None:
            if pool_service(name) not in running:
                return
            tree.let_end(pool_service(name))
            reports.append(await hive.pools[name].drain(self._settings.shutdown.grace_seconds))

        async def hurry() -> None:
            await self._signals.immediate.wait()
            for pool in hive.pools.values():
                group.start_soon(pool.drain, 0.0)

        async with anyio.create_task_group() as group:
            async with anyio.create_task_group() as drains:
                for name in hive.pools:
                    drains.start_soon(drain, name)
                group.start_soon(hurry)
            group.cancel_scope.cancel()
        return reports


async def _ready(health: "Health") -> None:
    while not health.ready().ok:  # noqa: ASYNC110 - a verdict over many facts has no event
        await anyio.sleep(0.01)


async def _stop(tree: ServiceTree, name: str) -> None:
    if any(view.name == name for view in tree.views()):
        await tree.stop(name)
