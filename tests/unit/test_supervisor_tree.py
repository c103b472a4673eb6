"""The service tree: one service's failure is its own, budgets end, stops are in the caller's order."""

import anyio
import pytest

from hive.clock import SystemClock
from hive.errors import NotFound, StoreDown
from hive.events import Events, ServiceChanged
from hive.pulse import Pulse
from hive.settings import Services
from hive.testing.manual_clock import ManualClock
from patience import until
from supervisor.restarts import RestartBudget
from supervisor.service import FatalService, Service, ServiceState
from supervisor.tree import ServiceTree

FAST = Services(backoff_first_seconds=0.001, backoff_max_seconds=0.002, restart_limit=5)


class Recorder:
    """A service that counts its runs and fails as told."""

    def __init__(self, *errors: Exception | None) -> None:
        self.errors = list(errors)
        self.runs = 0
        self.cancelled = 0

    async def run(self) -> None:
        self.runs += 1
        if self.errors:
            error = self.errors.pop(0)
            if error is None:
                return
            raise error
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            self.cancelled += 1
            raise


def tree(settings: Services = FAST, events: Events | None = None) -> ServiceTree:
    return ServiceTree(settings, clock=SystemClock(), events=events or Events())


def state_of(tree: ServiceTree, name: str) -> ServiceState:
    return next(view.state for view in tree.views() if view.name == name)


async def test_a_failing_service_runs_again_and_its_neighbour_never_notices() -> None:
    failing, neighbour = Recorder(ValueError("one"), None, ValueError("three")), Recorder()
    async with tree() as services:
        services.add(Service(name="failing", run=failing.run))
        services.add(Service(name="neighbour", run=neighbour.run))
        await until(lambda: failing.runs == 4)
        await services.running("failing")
        assert neighbour.runs == 1
        assert neighbour.cancelled == 0
        views = {view.name: view for view in services.views()}
        assert views["failing"].restarts == 3
        assert views["failing"].cause == "ValueError: three"
        assert views["neighbour"].restarts == 0
    assert neighbour.cancelled == 1


async def test_returning_unasked_is_a_failure() -> None:
    service = Recorder(None)
    async with tree() as services:
        services.add(Service(name="returns", run=service.run))
        await until(lambda: service.runs == 2)
        assert services.views()[0].cause == "it returned though nobody stopped it"


async def test_a_critical_service_out_of_budget_ends_the_tree_with_its_cause() -> None:
    failing = Recorder(*[ValueError(str(number)) for number in range(50)])
    with pytest.raises(FatalService, match=r"'disk' keeps failing: ValueError: 5"):  # noqa: PT012
        async with tree() as services:
            services.add(Service(name="disk", run=failing.run, critical=True))
            with anyio.fail_after(20):
                await services.wait()
    assert failing.runs == 6  # the first run and five restarts


async def test_any_other_service_out_of_budget_is_left_fatal_and_shown_and_can_be_revived() -> None:
    events, seen = Events(), []
    events.subscribe(ServiceChanged, lambda event: seen.append((event.service, event.state, event.cause)))
    failing, neighbour = Recorder(*[ValueError("no")] * 6), Recorder()
    async with tree(events=events) as services:
        services.add(Service(name="failing", run=failing.run))
        services.add(Service(name="neighbour", run=neighbour.run))
        await until(lambda: state_of(services, "failing") is ServiceState.FATAL)
        assert ("failing", "fatal", "ValueError: no") in seen
        assert not services.views()[0].alive
        assert "failing" not in services.alive()
        assert state_of(services, "neighbour") is ServiceState.RUNNING
        services.restart("failing", "asked by an operator", forgive=True)
        await services.running("failing")
        assert failing.runs == 7


async def test_an_outage_of_a_store_is_never_charged() -> None:
    service = Recorder(*[StoreDown("redis", "reading")] * 30, ExceptionGroup("g", [StoreDown("redis", "x")]))
    async with tree() as services:
        services.add(Service(name="reader", run=service.run, critical=True))
        await until(lambda: service.runs == 32)
        await services.running("reader")


async def test_restart_ends_only_that_service_and_needs_no_budget() -> None:
    stale, neighbour = Recorder(), Recorder()
    async with tree() as services:
        services.add(Service(name="stale", run=stale.run))
        services.add(Service(name="neighbour", run=neighbour.run))
        for round_number in range(1, 12):
            await services.running("stale")
            services.restart("stale", "stale pulse")
            await until(lambda: stale.runs == round_number + 1)
        assert neighbour.runs == 1
        assert neighbour.cancelled == 0


async def test_stop_waits_for_the_end_and_says_when_there_was_none() -> None:
    released = anyio.Event()

    async def stubborn() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await released.wait()

    tidy = Recorder()
    async with tree() as services:
        services.add(Service(name="tidy", run=tidy.run))
        services.add(Service(name="stubborn", run=stubborn))
        await services.running("tidy")
        await services.running("stubborn")
        assert await services.stop("tidy")
        assert state_of(services, "tidy") is ServiceState.STOPPED
        services.restart("tidy", "too late")
        assert not await services.stop("stubborn", within_seconds=0.01)
        released.set()
        assert await services.stop("stubborn")
        assert tidy.runs == 1
        with pytest.raises(NotFound):
            await services.stop("unknown")


async def test_a_stopped_service_can_be_added_anew() -> None:
    first, second = Recorder(), Recorder()
    async with tree() as services:
        services.add(Service(name="pool", run=first.run))
        await services.running("pool")
        await services.stop("pool")
        services.add(Service(name="pool", run=second.run))
        await services.running("pool")
        assert second.runs == 1


async def test_a_service_waits_for_what_it_needs() -> None:
    gate = anyio.Event()
    store, user = Recorder(), Recorder()
    async with tree() as services:
        services.add(Service(name="store", run=store.run, ready=gate.wait))
        services.add(Service(name="user", run=user.run, needs=("store",)))
        await until(lambda: store.runs == 1)
        assert state_of(services, "store") is ServiceState.STARTING
        assert user.runs == 0
        gate.set()
        await services.running("user")
        assert user.runs == 1


async def test_the_bodys_own_error_comes_out_bare() -> None:
    with pytest.raises(KeyError):  # noqa: PT012
        async with tree() as services:
            services.add(Service(name="a", run=Recorder().run))
            raise KeyError("body")


async def test_cancelling_the_body_ends_the_tree() -> None:
    service = Recorder()
    with anyio.CancelScope() as scope:
        async with tree() as services:
            services.add(Service(name="a", run=service.run))
            await services.running("a")
            scope.cancel()
            await services.wait()
    assert scope.cancelled_caught
    assert service.cancelled == 1


async def test_staleness_counts_from_the_start_of_the_run() -> None:
    clock = ManualClock()
    service = Recorder()
    async with ServiceTree(FAST, clock=clock, events=Events()) as services:
        services.add(Service(name="beat", run=service.run, pulse=Pulse(clock, 10)))
        await services.running("beat")
        clock.advance(31)
        assert services.views()[0].stale
        services.restart("beat", "stale pulse")
        await until(lambda: service.runs == 2)
        await services.running("beat")
        assert not services.views()[0].stale
        assert services.alive() == {"beat": True}
        clock.advance(31)
        assert services.alive() == {"beat": False}


def fail_until_fatal(budget: RestartBudget, settings: Services) -> float:
    """Seconds a crash loop lasts until the budget is used up."""
    at = 0.0
    while True:
        delay = budget.failed(at=at, lived_seconds=0)
        if delay is None:
            return at
        at += delay
        assert at < 10 * settings.restart_window_seconds, "the budget is never used up"


def test_the_shipped_settings_let_a_crash_loop_use_up_its_budget() -> None:
    settings = Services()
    assert fail_until_fatal(RestartBudget(settings), settings) <= settings.restart_window_seconds


def test_back_off_doubles_and_starts_anew_after_a_minute_of_health() -> None:
    budget = RestartBudget(Services(backoff_first_seconds=1, backoff_max_seconds=8))
    delays = [budget.failed(at=number, lived_seconds=0) for number in range(5)]
    assert [round(delay or 0, 9) for delay in delays] == pytest.approx([1, 2, 4, 8, 8], rel=0.21)
    assert budget.failed(at=100, lived_seconds=60) == pytest.approx(1, rel=0.21)


def test_failures_outside_the_window_are_forgotten() -> None:
    budget = RestartBudget(Services(restart_limit=2, restart_window_seconds=60))
    assert all(budget.failed(at=60.0 * number + number, lived_seconds=0) is not None for number in range(50))
    assert budget.failed(at=10_000, lived_seconds=0) is not None
    assert budget.failed(at=10_001, lived_seconds=0) is not None
    assert budget.failed(at=10_002, lived_seconds=0) is None
    budget.forgive()
    assert budget.failed(at=10_003, lived_seconds=0) is not None
