"""Who waits for which queue in this process, and how they are woken."""

import asyncio

from hive.ids import QueueName


class Wakeups:
    """One flag a queue. A wake that comes while nobody waits is kept for the next ``wait``."""

    def __init__(self) -> None:
        self._flags: dict[QueueName, asyncio.Event] = {}
        self._grown = asyncio.Event()

    @property
    def queues(self) -> frozenset[QueueName]:
        """Every queue that was ever waited for."""
        return frozenset(self._flags)

    def wake(self, queue: QueueName) -> None:
        """Let whoever waits for ``queue`` look again."""
        flag = self._flags.get(queue)
        if flag is not None:
            flag.set()

    def wake_all(self) -> None:
        """Let everybody look again: after an outage, say."""
        for flag in self._flags.values():
            flag.set()

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return after a wake of ``queue``, or when the time is over."""
        flag = self._flags.get(queue)
        if flag is None:
            flag = self._flags[queue] = asyncio.Event()
            self._grown.set()
        if not flag.is_set():
            try:
                async with asyncio.timeout(timeout_seconds):
                    await flag.wait()
            except TimeoutError:
                return
        flag.clear()

    async def grown_beyond(self, known: frozenset[QueueName]) -> None:
        """Return when there is a queue that is not among ``known``."""
        while self.queues <= known:
            self._grown.clear()
            await self._grown.wait()
