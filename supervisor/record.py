"""This boot's row in ``hive.process``, and what the rows of earlier boots tell.

Leases do not depend on these rows: a job comes back by its own lease whatever happened here. The rows make it
faster (a new boot on the same locked folder proves the earlier ones dead) and let people see who is there.
"""

import os
import socket
from collections.abc import Mapping
from typing import Final
from uuid import UUID

import anyio

from hive.clock import Clock
from hive.errors import StoreDown
from hive.ids import ProcessId
from hive.logger import get_logger
from hive.pulse import Pulse
from hive.store.postgres import Database

log = get_logger(__name__)

REFRESH_SECONDS: Final = 10.0


class ProcessRecord:
    """The row of one boot, from ``begin`` to ``end``; ``run`` is the service that keeps it fresh."""

    def __init__(
        self,
        database: Database,
        *,
        instance: UUID,
        process: ProcessId,
        slots: Mapping[str, int],
        clock: Clock,
    ) -> None:
        self._database = database
        self._instance = instance
        self._process = process
        self._slots = dict(slots)
        self.pulse = Pulse(clock, REFRESH_SECONDS * 2)

    async def begin(self) -> list[ProcessId]:
        """Write the row; returns this instance's earlier boots that did not end by themselves, all dead now.

        Bring their deliveries back, then say ``buried``: a boot that dies in between leaves them to the next.
        """
        async with self._database.transaction() as connection:
            rows = await connection.fetch(
                "select id from hive.process where instance = $1 and stopped_at is null and id <> $2",
                self._instance,
                self._process,
            )
            await connection.execute(
                """
                insert into hive.process (id, instance, host, pid, slots) values ($1, $2, $3, $4, $5)
                on conflict (id) do nothing
                """,
                self._process,
                self._instance,
                socket.gethostname(),
                os.getpid(),
                self._slots,
            )
        return [ProcessId(row["id"]) for row in rows]

    async def buried(self, boots: list[ProcessId]) -> None:
        """Mark dead boots as stopped, at the time they were last seen."""
        async with self._database.acquire() as connection:
            await connection.execute(
                "update hive.process set stopped_at = last_seen_at where id = any($1) and stopped_at is null",
                boots,
            )

    async def run(self) -> None:
        """Say "seen" every 10 seconds, until cancelled."""
        while True:
            await self.run_once()
            await anyio.sleep(REFRESH_SECONDS)

    async def run_once(self) -> None:
        """Refresh the row; an outage is waited out, and is no reason to fail."""
        try:
            async with self._database.acquire() as connection:
                await connection.execute(
                    "update hive.process set last_seen_at = now(), slots = $2 where id = $1",
                    self._process,
                    self._slots,
                )
        except StoreDown as error:
            log.info("process.not_recorded", cause=str(error))
        self.pulse.beat()

    def resized(self, slots: Mapping[str, int]) -> None:
        """The pools' sizes changed; written with the next refresh."""
        self._slots = dict(slots)

    async def end(self) -> None:
        """Mark this boot as stopped: nothing of it has to be brought back. Raises ``StoreDown``."""
        async with self._database.acquire() as connection:
            await connection.execute(
                "update hive.process set stopped_at = now(), last_seen_at = now() where id = $1",
                self._process,
            )
