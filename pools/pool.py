"""A worker pool: a bounded number of slots, shared by the task groups of its queues.

    intake (one per queue) ─▶ slots ─▶ task group (one per queue) ─▶ runner ─▶ settler (one per broker)
                                                                        └ leases renewed, doubted, cancelled

A pool is a supervised service. Its queues can be paused, its slots resized, and it can be drained, all while
it runs. What it holds survives a restart of its loops.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial

import anyio
from anyio.from_thread import BlockingPortal

from hive.broker.port import Broker, Delivery
from hive.clock import Clock
from hive.context import Context
from hive.errors import ConfigurationError, NotFound
from hive.events import Events, JobClaimed
from hive.ids import ProcessId, QueueName
from hive.logger import get_logger
from hive.pulse import Pulse
from hive.settings import Crashes, Leases, Pool, Shutdown
from hive.tasks import Registry
from pools.carrier import Carrier
from pools.children import ChildRunner
from pools.drain import Drain, DrainReport
from pools.groups import Groups
from pools.history import History
from pools.intake import Intake
from pools.run import Run, RunningJob, state_of
from pools.runner import Runner
from pools.settler import CROWDED
from pools.slots import Slots
from pools.threads import Threads

log = get_logger(__name__)

FLUSH_SECONDS = 5.0
"""How long the end of a pool waits for its last outcomes to be written."""
REST_SECONDS = 5.0
"""How often a pool at rest says that it is."""


class WorkerPool:
    """Claims from its queues, runs handlers, writes outcomes.

    ``routes``: the broker of each of its queues, others ignored. ``contexts`` makes a handler's context.
    ``owner``: this boot.
    """

    def __init__(
        self,
        name: str,
        settings: Pool,
        *,
        routes: Mapping[QueueName, Broker],
        registry: Registry,
        contexts: Callable[[Delivery, Broker], Context],
        owner: ProcessId,
        leases: Leases,
        shutdown: Shutdown,
        crashes: Crashes,
        events: Events,
        clock: Clock,
        children: ChildRunner | None = None,
    ) -> None:
        self.name = name
        self.slots = Slots(settings.slots)
        self.history = History()
        self.pulse = Pulse(clock, leases.renew_seconds)
        self._shutdown = shutdown
        self._events = events
        self._clock = clock
        self._running = False
        self._stopping = False
        self._drain: Drain | None = None
        self._drained = asyncio.Event()
        self._report: DrainReport | None = None
        self._tally: Counter[str] = Counter()
        self._threads = Threads(f"hive-{name}")
        queues = tuple(QueueName(queue) for queue in (*settings.ledger, *settings.stream))
        self._groups = Groups(
            name, queues, slots=self.slots, history=self.history, events=events, clock=clock
        )
        self._runner = Runner(
            name,
            registry=registry,
            contexts=contexts,
            threads=self._threads,
            children=children,
            patience_seconds=shutdown.cancel_seconds,
            write_off=self._groups.write_off,
            events=events,
            clock=clock,
        )
        del crashes  # the brokers keep the crash budgets; a pool only reports the crashes
        self._carriers: list[Carrier] = []
        self._intakes: dict[QueueName, Intake] = {}
        by_broker: dict[int, Carrier] = {}
        for queue in queues:
            broker = routes.get(queue)
            if broker is None:
                raise ConfigurationError(f"pool {name}: nothing carries its queue {queue!r}")
            carrier = by_broker.get(id(broker))
            if carrier is None:
                carrier = by_broker[id(broker)] = Carrier(
                    broker,
                    pool=name,
                    owner=owner,
                    queues=[each for each in queues if routes.get(each) is broker],
                    slots=settings.slots,
                    leases=leases,
                    beat=self._beat,
                    on_settled=self._settled,
                    events=events,
                    clock=clock,
                )
                self._carriers.append(carrier)  # once, however many queues it carries
            self._intakes[queue] = Intake(
                queue,
                hands=carrier.hands,
                owner=owner,
                slots=self.slots,
                prefetch=settings.prefetch,
                queues=len(queues),
                start=partial(self._groups.start, self._runner, carrier),
                hand_back=partial(self._groups.hand_back, carrier),
                claimed=partial(self._claimed, queue),
                crowded=partial(self._uncrowded, carrier),
                clock=clock,
            )

    # -- what others ask and tell ---------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether the pool consumes: its stores answer, its queues are claimed from or all slots are busy."""
        return (
            self._running
            and not self._stopping
            and all(carrier.hands.up for carrier in self._carriers)
            and all(intake.consuming for intake in self._intakes.values())
        )

    def running(self) -> list[RunningJob]:
        """The jobs in hand, longest-running first."""
        now = self._clock.monotonic()
        wall = self._clock.now()
        views: list[RunningJob] = []
        for run in self._runs():
            seconds = 0.0 if run.entered_at is None else now - run.entered_at
            views.append(
                RunningJob(
                    job=run.delivery.id,
                    task=run.delivery.task,
                    queue=run.delivery.queue,
                    tenant=run.delivery.tenant,
                    attempt=run.delivery.attempt,
                    state=state_of(run),
                    since=None if run.entered_at is None else wall - timedelta(seconds=seconds),
                    seconds=seconds,
                )
            )
        return sorted(views, key=lambda view: -view.seconds)

    def resize(self, slots: int) -> None:
        """Run up to ``slots`` handlers from now on; 0 switches the pool off. Nothing that runs is stopped."""
        before = self.slots.total
        self.slots.resize(slots)
        log.info("pool.resized", pool=self.name, before=before, slots=slots)
        self._announce(slots)
        if slots == 0:
            for intake in self._intakes.values():
                intake.clear_backlog()

    def pause(self, queue: QueueName) -> None:
        """Claim no more from ``queue`` in this process; raises NotFound unless it is one of this pool's."""
        self._intake(queue).pause()

    def resume(self, queue: QueueName) -> None:
        """Claim from ``queue`` again."""
        self._intake(queue).resume()

    def stop_intake(self) -> None:
        """Claim no more; what was prefetched and not started is released. Returns at once."""
        self._stopping = True
        self._announce(0)
        for intake in self._intakes.values():
            intake.stop()

    async def drain(self, grace_seconds: float) -> DrainReport:
        """Let finish what can in ``grace_seconds``, hand back the rest, write all outcomes, end ``run``.

        Takes at most ``grace_seconds`` + ``shutdown.cancel_seconds`` + 5 s. Calling it again while it works
        shortens the grace time (0: all at once). Renewals go on to the end.
        """
        if self._drain is not None:
            self._drain.shorten(grace_seconds)
        if self._drain is not None or self._report is not None:
            await self._drained.wait()
            return self._report or DrainReport(finished=0, handed_back=0, abandoned=0)
        before = self._tally.copy()
        self._drain = self._new_drain(grace_seconds)
        self.stop_intake()
        try:
            await self._drain.run(self._groups.ended)
            await self._flush()
            self._report = report = self._count(before)
        finally:
            self._drain = None
            self._drained.set()
        log.info(
            "pool.drained",
            pool=self.name,
            finished=report.finished,
            handed_back=report.handed_back,
            abandoned=report.abandoned,
        )
        return report

    # -- the service ----------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until drained. Cancelling it is a drain without grace: all is cancelled and released."""
        async with self._portal():
            self._groups.open()
            try:
                async with anyio.create_task_group() as loops:
                    for carrier in self._carriers:
                        loops.start_soon(carrier.run)
                    for intake in self._intakes.values():
                        loops.start_soon(intake.run)
                    loops.start_soon(self._rest)
                    self._running = True
                    await self._drained.wait()
                    loops.cancel_scope.cancel()
            finally:
                self._running = False
                with anyio.CancelScope(shield=True):
                    await self._wind_down()

    async def _rest(self) -> None:
        """Beat the pulse of a pool that has nothing to do: paused, without slots, or all of them busy."""
        while True:
            if all(intake.at_rest for intake in self._intakes.values()):
                self._beat()
            await anyio.sleep(REST_SECONDS)

    @asynccontextmanager
    async def _portal(self) -> AsyncGenerator[None]:
        async with BlockingPortal() as portal:
            self._runner.portal = portal
            try:
                yield
            finally:
                self._runner.portal = None
                await portal.stop(cancel_remaining=True)

    async def _wind_down(self) -> None:
        """Leave nothing behind that can be ended. Takes at most cancel_seconds + FLUSH_SECONDS + 2 s."""
        if self._report is None and self._runs():
            async with anyio.create_task_group() as loops:
                for carrier in self._carriers:
                    loops.start_soon(carrier.run)
                await self._new_drain(0).run(self._groups.ended)
                await self._flush()
                loops.cancel_scope.cancel()
        await self._groups.close()
        self._groups.give_up(self._carriers)
        self._threads.close()

    async def _flush(self) -> None:
        """Wait until claims under way have come back and all outcomes are written; bounded."""
        with anyio.move_on_after(FLUSH_SECONDS):
            for intake in self._intakes.values():
                await intake.closed.wait()
            for carrier in self._carriers:
                await carrier.settler.until_settled()

    # -- what the parts call --------------------------------------------------------------------------------

    def _new_drain(self, grace_seconds: float) -> Drain:
        return Drain(
            lambda: [run for run in self._runs() if run.has_slot],
            history=self.history,
            clock=self._clock,
            grace_seconds=grace_seconds,
            cancel_seconds=self._shutdown.cancel_seconds,
        )

    def _count(self, before: Counter[str]) -> DrainReport:
        since = self._tally - before
        handed_back = since.pop("released", 0)
        return DrainReport(finished=since.total(), handed_back=handed_back, abandoned=len(self._runs()))

    def _announce(self, slots: int) -> None:
        for carrier in self._carriers:
            carrier.announcements.change(0 if self._stopping else slots)

    def _runs(self) -> list[Run]:
        return [run for carrier in self._carriers for run in carrier.hands.runs]

    def _intake(self, queue: QueueName) -> Intake:
        try:
            return self._intakes[queue]
        except KeyError:
            raise NotFound(f"pool {self.name} has no queue {queue!r}") from None

    def _claimed(self, queue: QueueName, count: int) -> None:
        if self._events.heard(JobClaimed):
            self._events.publish(JobClaimed(pool=self.name, queue=queue, count=count))

    async def _uncrowded(self, carrier: Carrier) -> None:
        if carrier.settler.backlog > CROWDED:
            await carrier.settler.until_settled()

    def _settled(self, label: str) -> None:
        self._tally[label] += 1

    def _beat(self) -> None:
        """A call to a store came back. It counts only while no intake is wedged."""
        if not any(intake.overdue for intake in self._intakes.values()):
            self.pulse.beat()
