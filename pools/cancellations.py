"""Cancellations: handlers whose end somebody has asked for."""

import anyio

from hive.errors import StoreDown
from pools.hands import Hands
from pools.run import StopReason

TICK_SECONDS = 1.0


class Cancellations:
    """Asks once a second, in one call, which runs are to be cancelled; not at all while there are none."""

    def __init__(self, hands: Hands) -> None:
        self._hands = hands

    async def run_once(self) -> bool:
        """Stop the runs whose cancellation was asked for; False when the store did not answer."""
        runs = {run.key: run for run in self._hands.runs if run.ended_at is None and run.reason is None}
        if not runs:
            return True
        try:
            asked = await self._hands.broker.cancel_requested([run.delivery for run in runs.values()])
        except StoreDown as error:
            self._hands.unanswered("asking for cancellations", error)
            return False
        self._hands.answered()
        for delivery in asked:
            run = runs.get((delivery.id, delivery.fence))
            if run is not None and run.reason is None:
                run.stop(StopReason.OPERATOR)
        return True

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self._hands.until_occupied()
            await anyio.sleep(TICK_SECONDS)
            await self.run_once()
