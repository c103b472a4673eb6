"""Intake: one queue's way into the pool.

    until there is room ─▶ claim (slots in hand + prefetch) ─▶ backlog ─▶ start those that have a slot
            ▲                         │ none            ▲         │ ├─▶ feeder: waits its turn for a slot
            └────── wake-up ◀─────────┴──▶ `take`: it ──┘         │ └─▶ `following`: a task has become free
                                          came with it            └─▶ handed back, when nothing more may start

A claimer holds slots only while it claims, and at most its queue's part of the free ones. What it claims
beyond them waits in the backlog (at most ``prefetch``), and the feeder lines up for slots with the pool's
other queues; a task that has become free goes on only while nobody else waits for its slot. So a queue with
one message beside a flooded one waits for one slot, not for the flood.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import anyio

from hive.broker.port import Delivery
from hive.clock import Clock
from hive.errors import StoreDown
from hive.ids import ProcessId, QueueName
from pools.hands import RETRY, Hands
from pools.run import Run
from pools.slots import Slots

WAIT_SECONDS = 1.5
"""The slow poll behind a broker's wake-ups; also bounds how late a returned store is noticed."""
FULL_SECONDS = 0.05
"""A pool that stays full for so long lets others have what comes next."""
OVERDUE_SECONDS = 60.0
"""A claim that takes longer than any broker's deadline is wedged."""


class Intake:
    """Claims for one queue while the pool has room, hands over, and hands back what was never started.

    ``start`` runs a delivery, a slot in hand, and says whether its task will take the next by itself
    (``following``). ``hand_back`` returns one untouched. ``claimed`` hears how many came. ``crowded`` waits
    while too many outcomes are unwritten.
    """

    def __init__(
        self,
        queue: QueueName,
        *,
        hands: Hands,
        owner: ProcessId,
        slots: Slots,
        prefetch: int,
        queues: int,
        start: Callable[["Intake", Run], bool],
        hand_back: Callable[[Run], None],
        claimed: Callable[[int], None],
        crowded: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        self.queue = queue
        self.paused = False
        self.stopped = False
        self.closed = asyncio.Event()  # no claim is under way, and none will be
        self.closed.set()
        self._hands = hands
        self._owner = owner
        self._slots = slots
        self._prefetch = prefetch
        self._queues = queues
        self._start = start
        self._hand_back = hand_back
        self._claimed = claimed
        self._crowded = crowded
        self._clock = clock
        self._backlog: deque[Run] = deque()
        self._reserved = 0  # slots in hand for the first of them
        self._worked_off = False  # a task goes on with them, one after the other
        self._fed = asyncio.Event()  # the backlog holds something
        self._room = asyncio.Event()  # the backlog has gone down
        self._resumed = asyncio.Event()
        self._waiting: anyio.CancelScope | None = None
        self._waits_for_room = False
        self._round_at = clock.monotonic()
        self._claimed_at: float | None = None

    @property
    def waiting(self) -> int:
        """Prefetched deliveries that have no slot yet."""
        return len(self._backlog)

    @property
    def consuming(self) -> bool:
        """Whether the queue is served: claims succeed, or all slots are busy, or it was paused on purpose."""
        if self.paused or self._waits_for_room:
            return True
        if self._claimed_at is None or self.stopped:
            return False
        return self._clock.monotonic() - self._claimed_at <= 3 * WAIT_SECONDS

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing for it to do: paused, stopped, or no slot to claim for."""
        return self.paused or self.stopped or self._waits_for_room

    @property
    def overdue(self) -> bool:
        """Whether the loop is stuck in a round that should have ended long ago."""
        if self.at_rest:
            return False
        return self._clock.monotonic() - self._round_at > OVERDUE_SECONDS

    def pause(self) -> None:
        """Claim no more; what is here already goes on."""
        self.paused = True
        self._resumed.clear()
        self._wake()

    def resume(self) -> None:
        """Claim again."""
        self.paused = False
        self._round_at = self._clock.monotonic()
        self._resumed.set()

    def stop(self) -> None:
        """Claim no more and hand back what has not started.

        A claim under way is let finish: cut off, what it claimed would wait for the end of its lease.
        """
        self.stopped = True
        self._hand_back_all()
        self._wake()

    @property
    def due(self) -> bool:
        """Whether a claim waits only for its turn of the loop: it should be under way while the rest runs."""
        return self._waits_for_room and self._room.is_set()

    def following(self) -> Run | None:
        """The next of the backlog, with a slot. None: there is none, or the slot is another's turn."""
        if not self._backlog:
            return None
        if self._reserved:
            self._reserved -= 1
        elif not self._slots.grab(1):
            return None
        return self._next()

    def pass_on(self) -> None:
        """The task goes on no more: what still waits needs others."""
        self._worked_off = False
        if self._backlog:
            self._fed.set()

    def clear_backlog(self) -> None:
        """Hand back what waits for a slot: there will be none."""
        self._hand_back_all()

    def take(self, delivery: Delivery, since: float) -> bool:
        """Begin with what comes while nothing was there to claim, leased after ``since`` (boot time).

        False: it should go to somebody who would start it at once.
        """
        if self.stopped or self.paused:
            return False
        held = self._slots.grab(1)
        if not held and not self._space():
            return False
        self._keep([delivery], since)
        self._begin(held)
        return True

    async def run(self) -> None:
        """Claim and feed until ``stop``. Cancelling it hands back what was not started."""
        failures = 0
        self._round_at = self._clock.monotonic()
        self._worked_off = False
        self.closed.clear()
        self._hands.broker.receive(self.queue, self._owner, self.take)
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._feed)
                while not self.stopped:
                    held = await self._until_room()
                    if held is None:
                        continue
                    if self.stopped:
                        self._slots.release(held)
                        break
                    full = held == 0
                    count = await self.run_once(held)
                    failures = failures + 1 if count is None else 0
                    if not count:
                        await self._idle(failures, full)
                await self._withdraw()
                group.cancel_scope.cancel()
        finally:
            self._hands.broker.receive(self.queue, self._owner, None)
            self._hand_back_all()
            self.closed.set()

    async def run_once(self, held: int) -> int | None:
        """One claim, with ``held`` slots in hand; how many came, or None when the store did not answer."""
        self._waits_for_room = False
        began = self._clock.monotonic()
        try:
            limit = held + self._space()
            deliveries = await self._hands.broker.claim(self.queue, self._owner, limit) if limit else []
            self._claimed_at = self._clock.monotonic()
            self._hands.answered()
            self._keep(deliveries, began)
            mine, held = held, 0
            if self.stopped:
                self._hand_back_all()
            self._begin(mine)
            if not self._slots.total:
                self._hand_back_all()  # resized to nothing meanwhile: no slot will ever come for the rest
        except StoreDown as error:
            self._hands.unanswered("claiming", error)
            return None
        finally:
            if held:
                self._slots.release(held)
            self._round_at = self._clock.monotonic()
        return len(deliveries)

    def _keep(self, deliveries: list[Delivery], began: float) -> None:
        for delivery in deliveries:
            run = Run(delivery, began)
            self._hands.take(run)
            self._backlog.append(run)
        if deliveries:
            # What can begin begins first.
            asyncio.get_running_loop().call_soon(self._claimed, len(deliveries))

    def _space(self) -> int:
        """How many more may wait without a slot."""
        return max(0, self._prefetch - len(self._backlog)) if self._slots.total else 0

    def _unserved(self) -> int:
        """How many of the backlog have no slot yet. Theirs must not be in a claimer's hand while it waits."""
        return len(self._backlog) - self._reserved

    async def _until_room(self) -> int | None:
        """Wait until claiming makes sense; returns slots taken for it. None: look again (paused, stopped)."""
        self._waits_for_room = False
        with anyio.CancelScope() as self._waiting:
            if self.paused:
                await self._withdraw()
                await self._resumed.wait()
            self._waits_for_room = True
            await self._crowded()
            self._waits_for_room = False
            held = self._slots.grab(max(1, self._slots.free // self._queues) - self._unserved())
            if held or self._space():
                return held
            self._waits_for_room = True
            self._room.clear()
            await self._withdraw()
            if self._prefetch and self._slots.total:
                await self._room.wait()
                return None
            return await self._slots.acquire(1)
        return None

    async def _withdraw(self) -> None:
        """What the broker sets aside for one that waits should go to somebody who would start it at once."""
        try:
            await self._hands.broker.withdraw(self.queue, self._owner)
        except StoreDown as error:
            self._hands.unanswered("withdrawing", error)

    async def _idle(self, failures: int, full: bool) -> None:
        """Wait for work, or for the store to come back."""
        if self.stopped or self.paused:
            return
        with anyio.CancelScope() as self._waiting:
            if failures:
                await anyio.sleep(RETRY.delay(failures))
                return
            try:
                if full:
                    # Most jobs are short: the slot may well be free when the next message comes.
                    with anyio.move_on_after(FULL_SECONDS):
                        return await self._hands.broker.wait(self.queue, WAIT_SECONDS)
                    if not self._slots.free:
                        await self._withdraw()
                await self._hands.broker.wait(self.queue, WAIT_SECONDS)
            except StoreDown as error:
                self._hands.unanswered("waiting for work", error)
                await anyio.sleep(RETRY.delay(1))

    async def _feed(self) -> None:
        """Start what waits in the backlog, as slots come free."""
        while True:
            await self._fed.wait()
            self._fed.clear()
            if not self._backlog:
                continue
            held = 0 if self._reserved else await self._slots.acquire(len(self._backlog))
            held += self._slots.grab(self._unserved() - held)
            self._begin(held)

    def _begin(self, held: int) -> None:
        """Start what waits, ``held`` more slots in hand; those that are not needed go back."""
        held, self._reserved = held + self._reserved, 0
        try:
            while held and self._backlog and not self._worked_off:
                held -= 1
                self._worked_off = self._start(self, self._next())
            if self._worked_off:
                # A run that waits after all must not leave the others without their slots.
                self._reserved = min(held, len(self._backlog))
                held -= self._reserved
            elif self._backlog:
                self._fed.set()
        finally:
            if held:
                self._slots.release(held)

    def _next(self) -> Run:
        run = self._backlog.popleft()
        if len(self._backlog) <= self._prefetch // 2:
            self._room.set()  # not for each single one: claims of one message each would cost most
        return run

    def _hand_back_all(self) -> None:
        while self._backlog:
            self._hand_back(self._backlog.popleft())
        if self._reserved:
            self._slots.release(self._reserved)
            self._reserved = 0
        self._fed.clear()
        self._room.set()

    def _wake(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
