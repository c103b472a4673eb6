"""Starts: which handlers were entered, so that the death of hive is charged to those it may be due to.

The choice made here. Noting every start before its handler is entered would cost each message a round trip,
and most handlers are gone before it ends. Never noting it first would let a handler that kills hive in its
first step come back for ever, uncharged. So:

* a first delivery is entered at once, and noted once it has run for 0.1 s, together with all others;
* a delivery that was claimed before without coming to an outcome (``redelivered``: hive died with it, or lost
  its lease) is noted *before* its handler is entered.

A crash loop is thus charged from its second death on, and short healthy jobs cost nothing.

That rests on the claim, whose commit does not wait for the disk (delivery.sql). hive's own death loses none:
the server lives on, or is let end in its own time (supervisor/reaper.py). A server that dies with hive before
it has written its log (50 to 150 ms after the claim for the embedded one), as when the kernel kills a whole
container that is out of memory, forgets the claim: such a death is not seen, and the job comes as a first
delivery again. Only a handler that takes the server along that fast, each time, would go on uncharged.
"""

import asyncio

import anyio

from hive.broker.port import Delivery
from hive.clock import Clock
from hive.errors import StoreDown
from pools.hands import RETRY, Hands
from pools.run import Run

NOTED_AFTER_SECONDS = 0.1


class Starts:
    """Notes the starts of one broker's runs, in batches."""

    def __init__(self, hands: Hands, clock: Clock) -> None:
        self._hands = hands
        self._clock = clock
        self._waiting: list[tuple[Run, asyncio.Future[None]]] = []
        self._asked = asyncio.Event()

    def comes_first(self, delivery: Delivery) -> bool:
        """Whether the start must be noted before the handler is entered."""
        return delivery.redelivered

    async def note_first(self, run: Run) -> None:
        """Return when the start of ``run`` is noted; waits while the store is away."""
        noted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((run, noted))
        self._asked.set()
        await noted

    async def run_once(self) -> bool:
        """Note what is due in one call; False when the store did not answer."""
        self._asked.clear()
        first = self._waiting = [pair for pair in self._waiting if not pair[1].done()]
        now = self._clock.monotonic()
        due = [run for run, _ in first]
        due += [
            run
            for run in self._hands.runs
            if run.entered_at is not None
            and run.ended_at is None
            and not run.noted
            and now - run.entered_at >= NOTED_AFTER_SECONDS
        ]
        if not due:
            return True
        try:
            await self._hands.broker.mark_started([run.delivery for run in due])
        except StoreDown as error:
            self._hands.unanswered("noting starts", error)
            return False
        self._hands.answered()
        for run in due:
            run.noted = True
        for _, noted in first:
            if not noted.done():
                noted.set_result(None)
        return True

    async def run(self) -> None:
        """Note starts until cancelled."""
        failures = 0
        while True:
            await self._hands.until_occupied()
            failures = 0 if await self.run_once() else failures + 1
            with anyio.move_on_after(RETRY.delay(failures) if failures else NOTED_AFTER_SECONDS):
                await self._asked.wait()
