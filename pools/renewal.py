"""Renewal: one call per broker covers every lease the pool holds there, whatever the length of its jobs."""

import anyio

from hive.clock import Clock
from hive.errors import StoreDown
from pools.hands import RETRY, Hands
from pools.run import Run, StopReason


class Renewal:
    """Renews at a third of the lease, prefetched and ended-but-unwritten runs included.

    A lease that the store says is lost stops its handler at once. The waits are measured by the boot-time
    clock in steps of a second, so that a machine that slept renews right after it wakes.
    """

    def __init__(self, hands: Hands, *, renew_seconds: float, clock: Clock) -> None:
        self._hands = hands
        self._renew_seconds = renew_seconds
        self._clock = clock

    async def run_once(self) -> bool:
        """Renew all leases; False when the store did not answer."""
        runs = self._hands.leased()
        if not runs:
            return True
        began = self._clock.monotonic()
        try:
            # Half a period, so that a call that hangs leaves time for another before the lease is in doubt.
            with anyio.fail_after(self._renew_seconds / 2):
                lost = await self._hands.broker.renew([run.delivery for run in runs])
        except (StoreDown, TimeoutError) as error:
            self._hands.unanswered("renewing", error)
            return False
        self._hands.answered()
        gone = {(delivery.id, delivery.fence) for delivery in lost}
        for run in runs:
            if run.key in gone:
                self._lose(run)
            else:
                run.leased_at = began
        return True

    async def run(self) -> None:
        """Renew until cancelled."""
        failures = 0
        while True:
            await self._sleep(RETRY.delay(failures) if failures else self._renew_seconds)
            failures = 0 if await self.run_once() else failures + 1

    async def _sleep(self, seconds: float) -> None:
        due = self._clock.monotonic() + seconds
        while (left := due - self._clock.monotonic()) > 0:  # noqa: ASYNC110 - the clock is the event
            await anyio.sleep(min(1.0, left))

    def _lose(self, run: Run) -> None:
        if run.context is not None and run.context.settled:
            return  # its own transaction settled it: it is gone, not lost
        if run.ended_at is not None:
            run.reason = StopReason.LOST  # its outcome still waits to be written, and may not be any more
            return
        run.stop(StopReason.LOST)
