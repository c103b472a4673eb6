"""Who waits for which queue in this process, and how they are woken."""

import asyncio

from hive.ids import QueueName


class _Flag:
    """Raised by a wake, lowered by whoever was waiting for it; futures, since an event with a deadline around
    it takes half of the time from a wake-up to its handler."""

    __slots__ = ("raised", "waiting")

    def __init__(self) -> None:
        self.raised = False
        self.waiting: set[asyncio.Future[None]] = set()

    def raise_(self) -> None:
        self.raised = True
        for each in self.waiting:
            _end(each)


class Wakeups:
    """One flag a queue. A wake that comes while nobody waits is kept for the next ``wait``."""

    def __init__(self) -> None:
        self._flags: dict[QueueName, _Flag] = {}
        self._grown = asyncio.Event()

    @property
    def queues(self) -> frozenset[QueueName]:
        """Every queue that was ever waited for."""
        return frozenset(self._flags)

    def wake(self, queue: QueueName) -> None:
        """Let whoever waits for ``queue`` look again."""
        flag = self._flags.get(queue)
        if flag is not None:
            flag.raise_()

    def wake_all(self) -> None:
        """Let everybody look again: after an outage, say."""
        for flag in self._flags.values():
            flag.raise_()

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return after a wake of ``queue``, or when the time is over."""
        flag = self._flags.get(queue)
        if flag is None:
            flag = self._flags[queue] = _Flag()
            self._grown.set()
        if not flag.raised:
            loop = asyncio.get_running_loop()
            woken = loop.create_future()
            flag.waiting.add(woken)
            timer = loop.call_later(timeout_seconds, _end, woken)
            try:
                await woken
            finally:
                timer.cancel()
                flag.waiting.discard(woken)
        flag.raised = False

    async def grown_beyond(self, known: frozenset[QueueName]) -> None:
        """Return when there is a queue that is not among ``known``."""
        while self.queues <= known:
            self._grown.clear()
            await self._grown.wait()


def _end(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
