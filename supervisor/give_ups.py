"""Given-up work of ingestion, followed up at once.

An attempt learns from ``check_for_indexing`` that one of its jobs was given up, and that tick comes every
15 s. A person who waits for the attempt should not: the pool's own word about the job asks for a tick right
away. What this process does not hear of (a job that a sweep gives up) the next tick finds.
"""

from typing import Final

import anyio

from hive.client import Client
from hive.errors import QueueFull, StoreDown
from hive.events import Events, JobSettled
from hive.ids import TenantId
from hive.logger import get_logger
from hive.tasks import Task

log = get_logger(__name__)

CONCERNED: Final = frozenset({"fetch_connector", "process_batch"})
OUTCOMES: Final = frozenset({"failed", "cancelled"})
GATHER_SECONDS: Final = 0.25
"""Between two rounds: a thousand jobs that fail together ask for a few ticks, not for a thousand."""


class GiveUps:
    """``run`` is the service. ``tick``: the task that puts a tenant's attempts right; ``key``: its ticks'."""

    def __init__(
        self, client: Client, events: Events, *, tick: Task[...], key: str, expires_seconds: float
    ) -> None:
        self._client = client
        self._tick = tick
        self._key = key
        self._expires_seconds = expires_seconds
        self._tenants: set[TenantId] = set()
        self._wake = anyio.Event()
        events.subscribe(JobSettled, self._settled)

    def _settled(self, event: JobSettled) -> None:
        if event.outcome in OUTCOMES and event.task in CONCERNED and event.tenant is not None:
            self._tenants.add(event.tenant)
            self._wake.set()

    async def run(self) -> None:
        """Ask for ticks as jobs are given up, until cancelled."""
        while True:
            await self._wake.wait()
            await self.run_once()
            await anyio.sleep(GATHER_SECONDS)

    async def run_once(self) -> int:
        """Ask for one tick for each tenant concerned; returns for how many.

        A tick that waits already is enough. One that runs now may have looked too early: it runs again.
        While the store is away nothing is asked for: the regular tick will find it all.
        """
        tenants, self._tenants, self._wake = sorted(self._tenants), set(), anyio.Event()
        messages = [
            self._client.message(
                self._tick,
                {},
                tenant=tenant,
                key=self._key,
                while_running="rerun",
                expires_seconds=self._expires_seconds,
            )
            for tenant in tenants
        ]
        try:
            await self._client.publish(messages)
        except (StoreDown, QueueFull) as error:
            log.info("give_ups.left_to_the_tick", tenants=len(tenants), cause=error.code)
            return 0
        return len(tenants)
