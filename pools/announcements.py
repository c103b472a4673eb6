"""Announcements: a pool tells its brokers how many handlers it runs at once; they cut fair shares from it."""

from collections.abc import Sequence

import anyio

from hive.errors import StoreDown
from hive.ids import ProcessId, QueueName
from hive.logger import get_logger
from pools.hands import RETRY, Hands

log = get_logger(__name__)


class Announcements:
    """Says it at the start, whenever it changes, and every ``period_seconds``, for it is forgotten otherwise.

    Several pools of a process may share a broker, never a queue. A pool that stops claiming says zero.
    """

    def __init__(
        self,
        hands: Hands,
        *,
        owner: ProcessId,
        queues: Sequence[QueueName],
        slots: int,
        period_seconds: float,
    ) -> None:
        self._hands = hands
        self._owner = owner
        self._queues = tuple(queues)
        self._slots = slots
        self._period_seconds = period_seconds
        self._changed = anyio.Event()

    def change(self, slots: int) -> None:
        """From now on it is ``slots``; said as soon as the store answers."""
        self._slots = slots
        self._changed.set()

    async def run_once(self) -> bool:
        """Say it; False when the store did not answer."""
        self._changed = anyio.Event()
        try:
            # Half a period, as for a renewal: one call that hangs must not let it be forgotten.
            with anyio.fail_after(self._period_seconds / 2):
                await self._hands.broker.announce(self._owner, dict.fromkeys(self._queues, self._slots))
        except (StoreDown, TimeoutError) as error:
            log.debug("pool.unannounced", queues=self._queues, cause=str(error))
            self._changed.set()
            return False
        return True

    async def run(self) -> None:
        """Say it again and again, until cancelled."""
        failures = 0
        while True:
            if await self.run_once():
                failures = 0
                with anyio.move_on_after(self._period_seconds):
                    await self._changed.wait()
            else:
                failures += 1
                await anyio.sleep(RETRY.delay(failures))
