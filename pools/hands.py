"""What one pool holds of one broker: its runs, and whether the store behind it answers."""

import asyncio
from collections.abc import Callable

from hive.backoff import Backoff
from hive.broker.port import Broker
from hive.logger import get_logger
from pools.run import Run, StopReason

log = get_logger(__name__)

RETRY = Backoff(first_seconds=0.1, factor=2.0, max_seconds=1.6, jitter=0.2)
"""Between two tries while a store is away: at most 1.92 s, so that all resumes within 2 s of its return."""


class Hands:
    """The runs of one broker, from claim to settled outcome, and the health of the calls made to it.

    A run stays here while its outcome waits to be written, so that its lease is renewed until it is.
    """

    def __init__(self, broker: Broker, pool: str, beat: Callable[[], None]) -> None:
        self.broker = broker
        self.runs: set[Run] = set()
        self.up = True
        self._pool = pool
        self._beat = beat
        self._occupied = asyncio.Event()
        self._vacant = asyncio.Event()
        self._vacant.set()

    def take(self, run: Run) -> None:
        """Begin to hold ``run``. Who watches over runs hears of the first a turn of the loop later."""
        if not self.runs:
            self._vacant.clear()
            # Heard of at once, their first round would run before the handler.
            asyncio.get_running_loop().call_soon(self._tell_occupied)
        self.runs.add(run)

    def drop(self, run: Run) -> None:
        """Hold ``run`` no more: it is settled, or somebody else's."""
        self.runs.discard(run)
        if not self.runs:
            self._occupied.clear()
            self._vacant.set()

    def _tell_occupied(self) -> None:
        if self.runs:
            self._occupied.set()

    async def until_occupied(self) -> None:
        """Return when there is at least one run."""
        await self._occupied.wait()

    async def until_vacant(self) -> None:
        """Return when there is none."""
        await self._vacant.wait()

    def leased(self) -> list[Run]:
        """The runs whose lease is still ours, as far as we know."""
        return [run for run in self.runs if run.reason is not StopReason.LOST]

    def answered(self) -> None:
        """A call to the store came back."""
        self._beat()
        if not self.up:
            self.up = True
            log.info("pool.store_back", pool=self._pool, broker=self.broker.kind.value)

    def unanswered(self, doing: str, error: Exception) -> None:
        """A call to the store failed. That is a finished round too: the store is sick, not the pool."""
        self._beat()
        if self.up:
            self.up = False
            log.warning(
                "pool.store_away",
                pool=self._pool,
                broker=self.broker.kind.value,
                doing=doing,
                error=str(error) or type(error).__name__,
            )
