"""The settler: outcomes are gathered and written in batches.

A batch leaves as soon as the previous one was answered, never on a timer: a lone outcome is written at once,
and under load each batch is what gathered during the last round trip.
"""

import asyncio
from collections.abc import Callable
from typing import assert_never

import anyio

from hive.broker.port import Settlement, Verdict
from hive.errors import StoreDown
from hive.events import Events, JobSettled
from hive.logger import get_logger
from hive.outcomes import Cancelled, Completed, Failed, Outcome, Released, Retrying
from pools.hands import RETRY, Hands
from pools.run import Run, StopReason

log = get_logger(__name__)

BATCH = 500
CROWDED = 2000
"""Above this many unwritten outcomes the pool claims no more until they are written."""
TRIES = 3
"""How often an outcome that the store *refuses* (it answers, with an error) is tried before it is dropped."""


class Settler:
    """Writes the outcomes of one broker's runs.

    While the store is away they wait here, for as long as the pool runs: a late one does no harm, since the
    fence decides. One that is refused as stale changes nothing and is reported as ``stale``. Cancelling
    ``run`` loses none; the next ``run`` goes on.
    """

    def __init__(self, hands: Hands, *, pool: str, events: Events, on_settled: Callable[[str], None]) -> None:
        self._hands = hands
        self._pool = pool
        self._events = events
        self._on_settled = on_settled
        self._waiting: list[tuple[Run, Outcome]] = []
        self._work = asyncio.Event()
        self._done = asyncio.Event()
        self._done.set()
        self._limit = BATCH
        self._refusals = 0

    @property
    def backlog(self) -> int:
        """How many outcomes wait to be written."""
        return len(self._waiting)

    def add(self, run: Run, outcome: Outcome | None) -> None:
        """Have ``outcome`` written. None: the job is somebody else's, and nothing may be."""
        if outcome is None:
            self._close(run, "stale", None)
        elif isinstance(outcome, Completed) and outcome.settled:
            self._close(run, "completed", outcome)
        else:
            self._waiting.append((run, outcome))
            self._work.set()
            if self._done.is_set():
                self._done.clear()

    async def until_settled(self) -> None:
        """Return when no outcome waits."""
        await self._done.wait()

    async def run_once(self) -> bool:
        """Write one batch; False when the store did not take it."""
        lost = [pair for pair in self._waiting if pair[0].reason is StopReason.LOST]
        if lost:
            self._waiting = [pair for pair in self._waiting if pair[0].reason is not StopReason.LOST]
            for run, outcome in lost:
                self._close(run, "stale", outcome)
        batch = self._waiting[: self._limit]
        if batch:
            settlements = [Settlement(run.delivery, outcome, run.run_seconds) for run, outcome in batch]
            try:
                verdicts = await self._hands.broker.settle(settlements)
            except StoreDown as error:
                self._hands.unanswered("settling", error)
                return False
            except Exception as error:  # noqa: BLE001 - one bad outcome must not keep all others unwritten
                self._refused(batch, error)
                return False
            self._hands.answered()
            del self._waiting[: len(batch)]
            self._refusals = 0
            for (run, outcome), verdict in zip(batch, verdicts, strict=True):
                self._close(run, label_of(outcome, verdict), outcome)
        if not self._waiting:
            self._limit = BATCH
            self._work.clear()
            self._done.set()
        return True

    async def run(self) -> None:
        """Write outcomes as they come, until cancelled."""
        failures = 0
        while True:
            await self._work.wait()
            if await self.run_once():
                failures = 0
            else:
                failures += 1
                await anyio.sleep(RETRY.delay(failures))

    def _refused(self, batch: list[tuple[Run, Outcome]], error: Exception) -> None:
        """The store answered with an error: find the guilty one, and let it go after a few tries."""
        log.error("pool.settle_refused", pool=self._pool, count=len(batch), error=type(error).__name__)
        if len(batch) > 1:
            self._limit = 1
            return
        self._refusals += 1
        if self._refusals < TRIES:
            return
        self._refusals = 0
        run, _ = self._waiting.pop(0)
        log.error(
            "job.outcome_dropped",
            job=str(run.delivery.id),
            task=run.delivery.task,
            tenant=run.delivery.tenant,
            remedy="its lease ends and it runs again",
            exc_info=error,
        )
        self._hands.drop(run)

    def _close(self, run: Run, label: str, outcome: Outcome | None) -> None:
        self._hands.drop(run)
        self._on_settled(label)
        delivery = run.delivery
        if self._events.heard(JobSettled):
            self._events.publish(
                JobSettled(
                    *(self._pool, delivery.queue, delivery.task, delivery.id, delivery.tenant),
                    *(label, run.run_seconds),
                )
            )
        if label == "completed":
            return
        facts: dict[str, object] = {
            "job": str(delivery.id),
            "task": delivery.task,
            "tenant": delivery.tenant,
            "attempt": delivery.attempt,
        }
        if isinstance(outcome, Retrying | Failed):
            facts |= {"code": outcome.error.code, "error": outcome.error.summary}
        if isinstance(outcome, Cancelled | Released):
            facts |= {"reason": outcome.reason}
        # Each job that a closed provider turns away would have a line: the provider itself has one already.
        level = 10 if label == "throttled" else 30 if label in ("failed", "retrying", "stale") else 20
        log.log(level, f"job.{label}", **facts)


def label_of(outcome: Outcome, verdict: Verdict) -> str:
    """The word that ``JobSettled`` carries."""
    if verdict is Verdict.STALE:
        return "stale"
    if verdict is Verdict.POISONED:
        return "failed"
    match outcome:
        case Completed():
            return "completed"
        case Retrying():
            return "retrying" if outcome.charged else "throttled"
        case Failed():
            return "failed"
        case Cancelled():
            return "cancelled"
        case Released():
            return "released"
        case _:
            assert_never(outcome)
