"""Task groups: one named aiojobs scheduler per queue, in which its handlers run.

aiojobs knows nothing of anyio's scopes and does not bound itself here (``limit=None``), so both are seen to
in this file: a task is spawned only with a slot in hand, the slot comes back exactly once whatever happens,
and closing is shielded by the caller and bounded.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

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

    def open(self) -> None:
        """Make the groups anew, on the running loop."""
        self._schedulers = {
            queue: Scheduler(limit=None, close_timeout=CLOSE_SECONDS, exception_handler=self._report)
            for queue in self._queues
        }

    async def start(self, runner: Runner, carrier: Carrier, run: Run) -> None:
        """Run ``run``, whose slot the caller holds; the slot is ours from here on. Does not wait."""
        scheduler = self._schedulers[run.delivery.queue]
        run.has_slot = True
        if scheduler.closed:
            self._free(run)
            self.hand_back(carrier, run)
            return
        await scheduler.spawn(self._execute(runner, carrier, run), name=run.delivery.queue)

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

    async def _execute(self, runner: Runner, carrier: Carrier, run: Run) -> None:
        run.task = asyncio.current_task()
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
