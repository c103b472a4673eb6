"""Beat with 10,000 tenants × 14 schedules over a stream: what it costs, and how late its ticks are.

Prints {system: {"processor": % of one core, "latest tick": s, "rebuild": ms, "ticks": 1/s}}, once with a
hundredth of the tenants at work, once with all. Nobody consumes: a tick that still waits is a duplicate by
its key.
"""

import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence

import anyio
import hive_app

from hive.broker.port import Message
from hive.client import Client
from hive.clock import SystemClock
from hive.context import Context
from hive.ids import MessageId, QueueName, TenantId
from hive.settings import Beat as BeatSettings
from hive.store.connection import Connection
from hive.tasks import Registry, task
from supervisor.beat import Beat
from supervisor.schedules import schedules_of

TENANTS = 10_000
PERIODS = (15, 20, 20, 20, 20, 30, 30, 20, 300, 1800, 3600, 3600, 3600, 86400)
SYSTEMS = {"hive, 1 % at work": 0.01, "hive, all at work": 1.0}


def nothing(context: Context) -> None:
    del context


class Counted(Client):
    """Counts what it sends."""

    sent = 0

    async def publish(
        self, messages: Sequence[Message], *, connection: Connection | None = None
    ) -> list[MessageId]:
        self.sent += len(messages)
        return await super().publish(messages, connection=connection)


class Watched(Beat):
    """Notes how late each tick is taken, and how long a new timetable takes."""

    latest = 0.0
    rebuild = 0.0

    async def _reload(self) -> None:
        known = len(self._known)
        began = time.perf_counter()
        await super()._reload()
        if len(self._known) != known:
            self.rebuild = time.perf_counter() - began

    def _take_due(self, limit: int) -> list[tuple[object, tuple[float, object, object]]]:  # pyright: ignore[reportIncompatibleMethodOverride]
        taken = super()._take_due(limit)
        now = self._clock.monotonic()
        self.latest = max(self.latest, *(now - entry[0] for _, entry in taken), 0.0)
        return taken  # pyright: ignore[reportReturnType]


async def measure(share: float, seconds: float) -> Mapping[str, float]:
    app = hive_app.App()
    await app.open()
    registry = Registry()
    for number in range(len(PERIODS)):
        task(queue=hive_app.QUEUE, name=f"tick_{number}", work_gated=True, into=registry)(nothing)
    client = Counted(routes={QueueName(hive_app.QUEUE): app.broker}, registry=registry)
    periods = {f"tick_{number}": float(period) for number, period in enumerate(PERIODS)}
    tenants = {TenantId(f"t{number}"): number < share * TENANTS for number in range(TENANTS)}

    async def everyone() -> Mapping[TenantId, bool]:
        return tenants

    beat = Watched(
        schedules_of(periods, registry, [hive_app.QUEUE]),
        client=client,
        tenants=everyone,
        settings=BeatSettings(tenants_reload_seconds=3600),
        clock=SystemClock(),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(beat.run, 1)
        # The first round goes to everybody at work and is spread over each period; it is no steady state.
        await asyncio.sleep(min(40.0, seconds))
        beat.latest, client.sent = 0.0, 0
        began, used = time.monotonic(), time.process_time()
        await asyncio.sleep(seconds)
        elapsed = time.monotonic() - began
        figures = {
            "processor": 100 * (time.process_time() - used) / elapsed,
            "latest tick": beat.latest,
            "rebuild": 1000 * beat.rebuild,
            "ticks": client.sent / elapsed,
        }
        group.cancel_scope.cancel()
    await app.close()
    return figures


async def main(seconds: float) -> None:
    print(json.dumps({system: await measure(share, seconds) for system, share in SYSTEMS.items()}))


if __name__ == "__main__":
    asyncio.run(main(float(sys.argv[1])))
