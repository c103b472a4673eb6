"""Task groups: one named aiojobs scheduler per queue, in which its handlers run.

aiojobs knows nothing of anyio's scopes and does not bound itself here (``limit=None``), so both are seen to
in this file: a task is spawned only with a slot in hand, the slot comes back exactly once whatever happens,
and closing is shielded by the caller and bounded.

A handler that waits for anything has its task to itself, as in any asyncio program. One that ends in its
first step leaves a task as good as new. Where that is known of its like, one task of each queue goes on with
the deliveries that follow::

    start ─▶ task ─▶ first step of a run ─▶ ended, nothing left behind ─▶ the next of the backlog ─┐
                          ▲  └─ waits ─▶ the task is its own to the end                            │
                          └────────────────────────────────────────────────────────────────────────┘

Making a task and an aiojobs job takes as long as all else that is done for an empty message. Tasks that take
one run after the other whatever these do were rejected: a timer or a registry of a handler that waited may
still hold its task, and would then cancel a stranger's run.
"""

import asyncio
import contextvars
from collections.abc import Coroutine, Generator, Iterable
from types import coroutine
from typing import Any, Protocol

import anyio
from aiojobs import Scheduler

from hive.clock import Clock
from hive.events import Events, SlotWrittenOff
from hive.ids import QueueName
from hive.logger import get_logger
from hive.outcomes import Completed, Released
from pools.carrier import Carrier
from pools.history import History
from pools.run import Run, StopReason
from pools.runner import Runner
from pools.slots import Slots

log = get_logger(__name__)

CLOSE_SECONDS = 1.0
"""How long closing waits for tasks that were cancelled and do not end."""
TURN_SECONDS = 0.004
"""After this long in one step of the loop a task lets others have theirs: what a hundred jobs with a task
each take. With turns of 1 ms, batches of claims and outcomes get so small that a message costs a fifth more.
"""


class Backlog(Protocol):
    """Where the one task that goes on with a queue's runs finds the next: ``Intake``."""

    @property
    def due(self) -> bool:
        """Whether the loop should have a turn now, for a claim."""
        ...

    def following(self) -> Run | None:
        """The next run, with a slot; None when there is none, or the slot is somebody else's turn."""
        ...

    def pass_on(self) -> None:
        """The task goes on no more: what still waits needs others. To be called once."""
        ...


class Groups:
    """Runs deliveries in their queue's group and passes their outcomes on.

    ``ended`` is set whenever a handler ended.
    """

    def __init__(
        self,
        pool: str,
        queues: Iterable[QueueName],
        *,
        slots: Slots,
        history: History,
        events: Events,
        clock: Clock,
    ) -> None:
        self.ended = asyncio.Event()
        self._pool = pool
        self._queues = tuple(queues)
        self._slots = slots
        self._history = history
        self._events = events
        self._clock = clock
        self._schedulers: dict[QueueName, Scheduler] = {}
        self._prompt: set[str] = set()  # tasks whose last run ended in its first step and left nothing behind

    def open(self) -> None:
        """Make the groups anew, on the running loop."""
        self._schedulers = {
            queue: Scheduler(limit=None, close_timeout=CLOSE_SECONDS, exception_handler=self._report)
            for queue in self._queues
        }

    def start(self, runner: Runner, carrier: Carrier, backlog: Backlog, run: Run) -> bool:
        """Run ``run``, whose slot the caller holds; the slot is ours from here on.

        True if its task goes on with what follows in ``backlog``: its like have lately ended without waiting.
        """
        delivery = run.delivery
        scheduler = self._schedulers[delivery.queue]
        run.has_slot = True
        if scheduler.closed:
            self._free(run)
            self.hand_back(carrier, run)
            return False
        goes_on = delivery.task in self._prompt
        work = self._work(runner, carrier, run, backlog if goes_on else None)
        _at_once(scheduler.spawn(work, name=delivery.queue))
        return goes_on

    def hand_back(self, carrier: Carrier, run: Run) -> None:
        """Release a run that was never started."""
        if run.reason is StopReason.LOST:
            carrier.settler.add(run, None)
        else:
            carrier.settler.add(run, Released(reason=StopReason.SHUTDOWN.value))

    def write_off(self, run: Run) -> None:
        """Count the slot of a handler that cannot be ended as lost, loudly. Its lease is renewed further."""
        if run.written_off or run.ended_at is not None:
            return
        run.written_off = True
        self._slots.write_off()
        delivery = run.delivery
        log.error(
            "slot.written_off",
            pool=self._pool,
            task=delivery.task,
            job=str(delivery.id),
            tenant=delivery.tenant,
            attempt=delivery.attempt,
            remedy="the handler ignores its hard deadline; its slot comes back when it ends",
        )
        self._events.publish(
            SlotWrittenOff(
                pool=self._pool,
                queue=delivery.queue,
                task=delivery.task,
                job=delivery.id,
                total=self._slots.written_off,
            )
        )

    async def close(self) -> None:
        """End all tasks that can be ended. Takes little more than CLOSE_SECONDS; call it shielded."""
        async with anyio.create_task_group() as closing:
            for scheduler in self._schedulers.values():
                closing.start_soon(scheduler.close)

    def give_up(self, carriers: Iterable[Carrier]) -> None:
        """After ``close``: take back the slots of tasks that were cancelled before their first step."""
        for carrier in carriers:
            for run in list(carrier.hands.runs):
                if run.has_slot and run.task is None:
                    self._end(run)
                    carrier.hands.drop(run)

    async def _work(self, runner: Runner, carrier: Carrier, first: Run, backlog: Backlog | None) -> None:
        task = asyncio.current_task()
        assert task is not None
        untouched = contextvars.copy_context()
        began = self._clock.monotonic()
        run: Run | None = first
        try:
            while run is not None:
                run.has_slot, run.task = True, task
                execution = self._execute(runner, carrier, run)
                try:
                    waits_for = execution.send(None)
                except StopIteration:
                    pass
                else:
                    self._prompt.discard(run.delivery.task)
                    if backlog is not None:
                        backlog.pass_on()
                        backlog = None
                    await _resumed(execution, waits_for)
                    return
                if is_cancelled(task) or contextvars.copy_context() != untouched:
                    self._prompt.discard(run.delivery.task)
                    return
                if run.entered_at is not None:
                    self._prompt.add(run.delivery.task)
                if backlog is None:
                    return
                if backlog.due or run.ended_at is None or run.ended_at - began >= TURN_SECONDS:
                    await asyncio.sleep(0)
                    began = self._clock.monotonic()
                run = backlog.following()
        finally:
            if backlog is not None:
                backlog.pass_on()

    async def _execute(self, runner: Runner, carrier: Carrier, run: Run) -> None:
        try:
            outcome = await runner.run(run, carrier.broker, carrier.starts, carrier.doubt)
        finally:
            if run.thread is None or run.thread.done():
                self._end(run)
            else:
                run.thread.add_done_callback(lambda _: self._end(run))  # cut off; the thread goes on
        if type(outcome) is Completed:
            self._history.record(run.delivery.task, run.run_seconds)
        carrier.settler.add(run, outcome)

    def _end(self, run: Run) -> None:
        if run.ended_at is None:
            run.ended_at = self._clock.monotonic()
        if run.written_off:
            run.written_off = False
            self._slots.recover()
            log.warning("slot.recovered", pool=self._pool, task=run.delivery.task, job=str(run.delivery.id))
        self._free(run)
        self.ended.set()

    def _free(self, run: Run) -> None:
        if run.has_slot:
            run.has_slot = False
            self._slots.release()

    def _report(self, _: Scheduler, context: dict[str, Any]) -> None:
        """aiojobs reports a task that outlived closing, or (a bug of ours) an error out of ``_execute``."""
        log.error("pool.task", pool=self._pool, text=context["message"], exc_info=context.get("exception"))


def is_cancelled(task: asyncio.Task[Any]) -> bool:
    """Whether a cancellation of ``task`` was asked for that nobody took back, or that is yet to arrive.

    Python 3.11 delivers one even if it was taken back (``uncancel``) before its next step; only asyncio's own
    attribute tells.
    """
    return task.cancelling() > 0 or bool(getattr(task, "_must_cancel", False))


def _at_once(coroutine: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine that has nothing to wait for, where nobody can await it."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    coroutine.close()
    raise RuntimeError("it waits")


@coroutine
def _resumed(execution: Coroutine[Any, Any, None], waits_for: object) -> Generator[Any, Any, None]:
    """Go on with a coroutine that was stepped by hand and waits for ``waits_for``, as ``await`` would."""
    while True:
        step = execution.send
        given: Any = None
        try:
            given = yield waits_for
        except GeneratorExit:
            execution.close()
            raise
        except BaseException as error:  # noqa: BLE001 - a cancellation: it is the coroutine's to catch
            step, given = execution.throw, error
        try:
            waits_for = step(given)
        except StopIteration:
            return
