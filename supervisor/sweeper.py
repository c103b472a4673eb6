"""Sweeps: the upkeep of the queues, done by every process.

Promoting what is due and bringing back what was abandoned are idempotent, skip what another process is at,
and cost one round trip when there is nothing to do. If only the leader did them, every lost leader would
stop all delayed and retried work until the next one. What deletes old rows runs on the leader alone.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import anyio

from hive.backoff import jittered
from hive.broker.port import Broker, Swept
from hive.clock import Clock
from hive.errors import StoreDown
from hive.ids import QueueName
from hive.logger import get_logger
from hive.pulse import Pulse
from hive.settings import Leases

log = get_logger(__name__)

PRUNE_SECONDS = 300.0


@dataclass(slots=True)
class _Line:
    """One broker with its queues. ``hold_until``: leases are spared before, on the clock."""

    name: str
    broker: Broker
    queues: tuple[QueueName, ...]
    answered_at: float
    away: bool = False
    hold_until: float = float("-inf")


class Sweeper:
    """``brokers`` by name, with the queues each carries. ``run`` is the service.

    After an outage of its store a broker's leases are spared for one lease length: they ran out while nobody
    could renew them, though their jobs still run, and renewal must get its turn before they are taken for
    abandoned. What is due meanwhile is promoted all the same. An outage too short to end a renewed lease
    changes nothing.
    """

    def __init__(
        self,
        brokers: Mapping[str, tuple[Broker, Sequence[QueueName]]],
        settings: Leases,
        *,
        clock: Clock,
    ) -> None:
        self._lines = [
            _Line(name, broker, tuple(queues), answered_at=clock.monotonic())
            for name, (broker, queues) in brokers.items()
            if queues
        ]
        self._sweep_seconds = settings.sweep_seconds
        self._clock = clock
        self.pulse = Pulse(clock, max(30.0, settings.sweep_seconds * 2))

    async def run(self) -> None:
        """Sweep every ``leases.sweep_seconds``, give or take a fifth, until cancelled."""
        while True:
            await self.run_once()
            await anyio.sleep(jittered(self._sweep_seconds, 0.2))

    async def run_once(self) -> None:
        """One sweep of each broker; one that is away does not keep the others waiting for their turn."""
        async with anyio.create_task_group() as group:
            for line in self._lines:
                group.start_soon(self._sweep, line)
        self.pulse.beat()

    async def _sweep(self, line: _Line) -> None:
        try:
            if line.away:
                await line.broker.depth(line.queues[0])  # any cheap question: is it back?
                line.away = False
                self._hold(line)
            held = self._clock.monotonic() < line.hold_until
            self._report(line, await line.broker.sweep(line.queues, expire_leases=not held))
            line.answered_at = self._clock.monotonic()
        except StoreDown as error:
            if not line.away:
                log.warning("sweep.store_away", broker=line.name, cause=str(error))
            line.away = True

    def _hold(self, line: _Line) -> None:
        # A lease is renewed with two thirds of it left, so a quarter of it without a store ends none.
        lease_seconds = line.broker.lease_seconds
        away_seconds = self._clock.monotonic() - line.answered_at
        if away_seconds > lease_seconds / 4:
            line.hold_until = self._clock.monotonic() + lease_seconds
            log.info("sweep.held", broker=line.name, away_seconds=round(away_seconds), seconds=lease_seconds)

    def _report(self, line: _Line, swept: Swept) -> None:
        if swept.expired or swept.orphaned or swept.failed:
            log.warning(
                "sweep.recovered",
                broker=line.name,
                expired=swept.expired,
                orphaned=swept.orphaned,
                failed=swept.failed,
            )


class Pruner:
    """Deletes what is past its retention, every five minutes, on the leader.

    Hand ``run`` to ``Leadership.while_leading``.

    ``prunes``: name and function, which deletes a bounded number of rows and returns how many.
    """

    def __init__(self, prunes: Mapping[str, Callable[[], Awaitable[int]]], *, clock: Clock) -> None:
        self._prunes = dict(prunes)
        self.pulse = Pulse(clock, PRUNE_SECONDS * 2)

    async def run(self, term: int) -> None:
        """Prune until cancelled."""
        del term  # deleting what is old is harmless when two do it
        while True:
            await self.run_once()
            await anyio.sleep(jittered(PRUNE_SECONDS, 0.2))

    async def run_once(self) -> None:
        """One round; an outage is waited out."""
        for name, prune in self._prunes.items():
            try:
                removed = await prune()
            except StoreDown as error:
                log.warning("prune.store_away", prune=name, cause=str(error))
            else:
                if removed:
                    log.info("prune.done", prune=name, removed=removed)
        self.pulse.beat()
