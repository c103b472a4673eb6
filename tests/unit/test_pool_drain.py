import asyncio

import anyio
import pytest

from hive.broker.memory import Memory
from hive.broker.port import Delivery, Lane
from hive.client import Client
from hive.context import Context
from hive.ids import QueueName, TaskName, new_message_id, new_process_id
from hive.tasks import Registry
from hive.testing.manual_clock import ManualClock
from pool_kit import NoStores
from pools.drain import Drain
from pools.history import History
from pools.run import Run, StopReason


def run_of(task: str, clock: ManualClock, *, listens: bool = False) -> Run:
    delivery = Delivery(
        id=new_message_id(),
        queue=QueueName("work"),
        task=TaskName(task),
        tenant=None,
        args={},
        lane=Lane.NORMAL,
        owner=new_process_id(),
        fence=1,
        attempt=1,
        max_attempts=4,
    )
    run = Run(delivery, clock.monotonic())
    run.context = Context(
        delivery=delivery,
        broker=Memory(clock),
        stores=NoStores(),
        client=Client(routes={}, registry=Registry()),
        services={},
    )
    if listens:
        assert not run.context.stopping.is_set()
    run.entered_at = clock.monotonic()
    run.has_slot = True
    return run


class Stage:
    """A drain over runs that end when a test says so."""

    def __init__(self, *runs: Run, history: History, clock: ManualClock, grace: float = 25) -> None:
        self.runs = list(runs)
        self.drain = Drain(
            lambda: self.runs, history=history, clock=clock, grace_seconds=grace, cancel_seconds=5
        )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def history() -> History:
    history = History()
    for seconds in (1, 2, 3):
        history.record("short", seconds)
    for seconds in (100, 200, 300):
        history.record("long", seconds)
    return history


def test_the_remaining_time_is_the_median_of_runs_that_took_longer(history: History):
    assert history.remaining("short", 0) == 2
    assert history.remaining("short", 1.5) == 1
    assert history.remaining("short", 50) is None
    assert history.remaining("unknown", 0) is None


def test_history_keeps_the_newest_runs():
    history = History()
    for _ in range(100):
        history.record("t", 5)
    for _ in range(64):
        history.record("t", 50)
    assert history.remaining("t", 0) == 50


def test_what_cannot_finish_is_stopped_at_once_and_what_can_is_not(clock: ManualClock, history: History):
    short, long, unknown = (run_of(task, clock) for task in ("short", "long", "unknown"))
    stage = Stage(short, long, unknown, history=history, clock=clock)
    assert not stage.drain.run_once()
    assert (short.reason, long.reason, unknown.reason) == (None, StopReason.SHUTDOWN, None)


def test_what_was_not_entered_yet_is_stopped_at_once(clock: ManualClock, history: History):
    run = run_of("short", clock)
    run.entered_at = None
    Stage(run, history=history, clock=clock).drain.run_once()
    assert run.reason is StopReason.SHUTDOWN


def test_a_run_without_history_gets_the_whole_grace_time_and_then_ends(clock: ManualClock, history: History):
    run = run_of("unknown", clock)
    stage = Stage(run, history=history, clock=clock)
    clock.advance(24.9)
    assert not stage.drain.run_once()
    assert run.reason is None
    clock.advance(0.2)
    assert not stage.drain.run_once()
    assert run.reason is StopReason.SHUTDOWN
    clock.advance(5)
    assert stage.drain.run_once(), "a handler that does not end is not waited for beyond cancel_seconds"


def test_a_run_that_outlasts_its_kind_is_planned_anew(clock: ManualClock, history: History):
    history.record("short", 500)
    run = run_of("short", clock)
    stage = Stage(run, history=history, clock=clock)
    stage.drain.run_once()
    assert run.reason is None
    clock.advance(4)
    stage.drain.run_once()
    assert run.reason is StopReason.SHUTDOWN


def test_a_listening_handler_is_told_first_and_cancelled_after_its_time(clock: ManualClock, history: History):
    run = run_of("long", clock, listens=True)
    assert run.context is not None
    stage = Stage(run, history=history, clock=clock)
    stage.drain.run_once()
    assert run.context.stopping.is_set()
    assert run.reason is None
    clock.advance(4.9)
    stage.drain.run_once()
    assert run.reason is None
    clock.advance(0.2)
    stage.drain.run_once()
    assert run.reason is StopReason.SHUTDOWN


def test_a_listening_handler_stores_its_checkpoint_within_the_grace_time(
    clock: ManualClock, history: History
):
    run = run_of("unknown", clock, listens=True)
    assert run.context is not None
    stage = Stage(run, history=history, clock=clock)
    clock.advance(19)
    stage.drain.run_once()
    assert not run.context.stopping.is_set()
    clock.advance(2)
    stage.drain.run_once()
    assert run.context.stopping.is_set()
    assert run.reason is None
    clock.advance(4)
    stage.drain.run_once()
    assert run.reason is StopReason.SHUTDOWN


def test_a_second_signal_ends_the_grace_time(clock: ManualClock, history: History):
    run = run_of("unknown", clock, listens=True)
    stage = Stage(run, history=history, clock=clock)
    stage.drain.run_once()
    stage.drain.shorten(0)
    stage.drain.run_once()
    assert run.reason is StopReason.SHUTDOWN


async def test_it_is_over_when_the_last_run_ended(clock: ManualClock, history: History):
    run = run_of("unknown", clock)
    stage = Stage(run, history=history, clock=clock)
    ended = anyio.Event()
    signal = asyncio.Event()

    async def drain() -> None:
        await stage.drain.run(signal)
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(drain)
        await anyio.wait_all_tasks_blocked()
        assert not ended.is_set()
        stage.runs.clear()
        signal.set()
        with anyio.fail_after(20):
            await ended.wait()
