"""Lease doubt: what happens to handlers whose lease could not be renewed while the store was away."""

import anyio

from hive.clock import Clock
from hive.logger import get_logger
from pools.hands import Hands
from pools.run import Run, StopReason

log = get_logger(__name__)

TICK_SECONDS = 0.5


class Doubt:
    """Watches the age of leases by our own clock, without asking anybody: the one who would answer is away.

    ``margin_seconds`` before the end of its lease a handler is cancelled, unless its task says
    ``on_lease_doubt="continue"`` since all its effects go through a transaction that a stale fence refuses.
    """

    def __init__(self, hands: Hands, *, margin_seconds: float, clock: Clock) -> None:
        self._hands = hands
        self._trusted_seconds = hands.broker.lease_seconds - margin_seconds
        self._clock = clock

    def doubts(self, run: Run, now: float) -> bool:
        """Whether the lease of ``run`` may end before it can be renewed."""
        return now - run.leased_at >= self._trusted_seconds

    def run_once(self) -> None:
        """Cancel the handlers in doubt."""
        now = self._clock.monotonic()
        for run in list(self._hands.runs):
            if run.active and run.reason is None and run.on_lease_doubt == "cancel" and self.doubts(run, now):
                log.warning("job.lease_doubt", job=str(run.delivery.id), task=run.delivery.task)
                run.stop(StopReason.DOUBT)

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await self._hands.until_occupied()
            self.run_once()
            await anyio.sleep(TICK_SECONDS)
