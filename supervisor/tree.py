"""The service tree: one task per service, each started again alone when it fails.

One task group holds them all, and no service's error ever reaches it: an error in a task group cancels its
siblings, and one pool's crash loop must not touch another. So each error is caught where its service runs.
"""

from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Self

import anyio
from anyio.abc import TaskGroup

from hive.clock import Clock
from hive.errors import ConfigurationError, NotFound, StoreDown, StoresMissing
from hive.events import Events, ServiceChanged
from hive.logger import get_logger
from hive.settings import Services
from supervisor.restarts import RestartBudget
from supervisor.service import FatalService, Service, ServiceState, ServiceView

log = get_logger(__name__)


class ServiceTree:
    """Runs services until they are stopped. Use it as a context::

        async with ServiceTree(settings.services, clock=clock, events=events) as tree:
            tree.add(Service(name="beat", run=beat.run, pulse=beat.pulse))
            await tree.wait()  # raises FatalService when a critical service is out of budget

    Leaving the context cancels what still runs and waits for its end.
    """

    def __init__(self, settings: Services, *, clock: Clock, events: Events) -> None:
        self._settings = settings
        self._clock = clock
        self._events = events
        self._entries: dict[str, _Entry] = {}
        self._group: TaskGroup | None = None
        self._fatal: FatalService | None = None
        self._ended = anyio.Event()

    async def __aenter__(self) -> Self:
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        assert self._group is not None
        for entry in self._entries.values():
            entry.stopping = True
        self._group.cancel_scope.cancel()
        if isinstance(error, anyio.get_cancelled_exc_class()):
            return await self._group.__aexit__(kind, error, trace)
        # The body's own error is kept from the group, which would wrap it in an ExceptionGroup.
        await self._group.__aexit__(None, None, None)
        return None

    def add(self, service: Service) -> None:
        """Start ``service`` now, or as soon as what it needs is running. Only inside the context."""
        if self._group is None:
            raise RuntimeError("ServiceTree.add() outside its context")
        known = self._entries.get(service.name)
        if known is not None and not known.over.is_set():
            raise ConfigurationError(f"two services are named {service.name!r}")
        for name in service.needs:
            self._entry(name)
        entry = _Entry(service, RestartBudget(self._settings), self._clock.monotonic())
        self._entries[service.name] = entry
        self._group.start_soon(self._keep, entry, name=f"service {service.name}")

    async def wait(self) -> None:
        """Return never; raises FatalService once a critical service is out of its restart budget."""
        await self._ended.wait()
        assert self._fatal is not None
        raise self._fatal

    async def running(self, name: str) -> None:
        """Return as soon as ``name`` is RUNNING; raises FatalService once the tree cannot go on."""
        entry = self._entry(name)
        while entry.state is not ServiceState.RUNNING:
            if self._fatal is not None:
                raise self._fatal
            await entry.changed.wait()

    def restart(self, name: str, reason: str, *, forgive: bool = False) -> None:
        """Cancel ``name`` and start it again at once, without a back-off; returns without waiting.

        Revives a FATAL service. ``forgive``: with a fresh budget, for a person's request. A service that was
        stopped stays stopped.
        """
        entry = self._entry(name)
        if entry.stopping:
            return
        if forgive or entry.state is ServiceState.FATAL:
            entry.budget.forgive()
        entry.cause = reason
        entry.restart_asked = True
        entry.scope.cancel()
        entry.wake.set()

    def let_end(self, name: str) -> None:
        """From now on ``name`` may return by itself, and is not started again: for what drains."""
        self._entry(name).stopping = True

    async def stop(self, name: str, *, within_seconds: float = 5.0) -> bool:
        """Cancel ``name`` for good and wait for its end; False when it did not end in time.

        Cancelling this call leaves the service being stopped.
        """
        entry = self._entry(name)
        entry.stopping = True
        entry.scope.cancel()
        entry.wake.set()
        with anyio.move_on_after(within_seconds):
            await entry.over.wait()
        if not entry.over.is_set():
            log.error("service.stuck", service=name, waited_seconds=within_seconds)
        return entry.over.is_set()

    def views(self) -> list[ServiceView]:
        """Every service as it stands now, in the order they were added."""
        now = self._clock.monotonic()
        return [entry.view(now) for entry in self._entries.values()]

    def alive(self) -> Mapping[str, bool]:
        """For the liveness files: each service that is not over, and whether it is taken care of."""
        over = {ServiceState.STOPPED, ServiceState.FATAL}
        return {view.name: view.alive for view in self.views() if view.state not in over}

    async def _keep(self, entry: "_Entry") -> None:
        """Run one service again and again, until it is stopped."""
        try:
            while not entry.stopping:
                entry.renew()
                error = await self._run(entry)
                if entry.stopping:
                    break
                if entry.restart_asked:
                    log.warning("service.restarted", service=entry.service.name, cause=entry.cause)
                else:
                    await self._failed(entry, error)
                entry.restarts += 1
        finally:
            entry.stopping = True
            self._move(entry, ServiceState.STOPPED)
            entry.over.set()

    async def _run(self, entry: "_Entry") -> Exception | None:
        """One run of the service to its end, and the error it ended with. The failure boundary."""
        self._move(entry, ServiceState.STARTING)
        try:
            with entry.scope:
                for name in entry.service.needs:
                    await self.running(name)
                entry.entered = self._clock.monotonic()
                async with anyio.create_task_group() as group:
                    group.start_soon(self._announce, entry)
                    await entry.service.run()
                    group.cancel_scope.cancel()
        except Exception as error:  # noqa: BLE001 - this boundary owns a service's failures
            return error
        return None

    async def _announce(self, entry: "_Entry") -> None:
        if entry.service.ready is not None:
            await entry.service.ready()
        self._move(entry, ServiceState.RUNNING)

    async def _failed(self, entry: "_Entry", error: Exception | None) -> None:
        """Log a failure, then wait out its back-off, or for a revival when the budget is used up."""
        name = entry.service.name
        entry.cause = describe(error)
        now = self._clock.monotonic()
        outage = error is not None and all(
            isinstance(one, StoreDown | StoresMissing) for one in leaves(error)
        )
        delay = entry.budget.failed(at=now, lived_seconds=now - entry.entered, outage=outage)
        if delay is None:
            log.error("service.fatal", service=name, cause=entry.cause, exc_info=error)
            self._move(entry, ServiceState.FATAL)
            if entry.service.critical:
                self._end(FatalService(name, entry.cause))
            await entry.wake.wait()
            return
        log.warning(
            "service.failed",
            service=name,
            cause=entry.cause,
            again_in_seconds=round(delay, 3),
            exc_info=None if outage else error,
        )
        self._move(entry, ServiceState.BACKOFF)
        with anyio.move_on_after(delay):
            await entry.wake.wait()

    def _end(self, fatal: FatalService) -> None:
        if self._fatal is None:
            self._fatal = fatal
        self._ended.set()
        for entry in self._entries.values():
            entry.note()  # whoever waits in running() learns that it waits in vain

    def _move(self, entry: "_Entry", state: ServiceState) -> None:
        entry.state = state
        entry.since = self._clock.monotonic()
        entry.note()
        cause = entry.cause if state in {ServiceState.BACKOFF, ServiceState.FATAL} else None
        self._events.publish(ServiceChanged(service=entry.service.name, state=state.value, cause=cause))

    def _entry(self, name: str) -> "_Entry":
        try:
            return self._entries[name]
        except KeyError:
            raise NotFound(f"no service is named {name!r}") from None


class _Entry:
    """What the tree remembers of one service."""

    def __init__(self, service: Service, budget: RestartBudget, now: float) -> None:
        self.service = service
        self.budget = budget
        self.state = ServiceState.STARTING
        self.since = now
        self.entered = now
        self.cause: str | None = None
        self.restarts = 0
        self.stopping = False
        self.changed = anyio.Event()
        self.over = anyio.Event()
        self.renew()

    def renew(self) -> None:
        """Make ready for one more run: neither a cancel scope nor an event can be used twice."""
        self.restart_asked = False
        self.scope = anyio.CancelScope()
        self.wake = anyio.Event()

    def note(self) -> None:
        self.changed.set()
        self.changed = anyio.Event()

    def view(self, now: float) -> ServiceView:
        pulse = self.service.pulse
        since_seconds = now - self.since
        age = pulse.age_seconds if pulse is not None else None
        return ServiceView(
            name=self.service.name,
            state=self.state,
            critical=self.service.critical,
            restarts=self.restarts,
            since_seconds=since_seconds,
            cause=self.cause,
            pulse_age_seconds=age,
            pulse_period_seconds=pulse.period_seconds if pulse is not None else None,
            # A service that was just started has had no time for a round yet.
            stale=pulse is not None
            and age is not None
            and self.state is ServiceState.RUNNING
            and min(age, since_seconds) > 3 * pulse.period_seconds,
        )


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The errors inside an exception group, however deep; of a plain error, itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def describe(error: BaseException | None) -> str:
    """A failure in one line; None: the service returned though nobody stopped it."""
    if error is None:
        return "it returned though nobody stopped it"
    return "; ".join(f"{type(one).__name__}: {one}"[:300] for one in leaves(error))
