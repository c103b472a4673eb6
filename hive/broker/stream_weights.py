"""Tenants' weights on their way from Postgres to the stream queues."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from hive.broker.graveyard import SQL
from hive.broker.stream_keys import keys_of
from hive.broker.stream_link import Argument
from hive.broker.stream_scripts import StreamScripts
from hive.errors import StoreDown
from hive.ids import QueueName
from hive.logger import get_logger
from hive.store.postgres import Database

log = get_logger(__name__)

PERIOD_SECONDS: Final = 60.0


class StreamWeights:
    """Reads the weights every minute and writes them where they changed: also to a Redis that was wiped."""

    def __init__(
        self,
        database: Database,
        scripts: StreamScripts,
        queues: Callable[[], Awaitable[Sequence[QueueName]]],
    ) -> None:
        self._database = database
        self._scripts = scripts
        self._queues = queues

    async def run_once(self, queues: Sequence[QueueName] | None = None) -> None:
        """Write the weights to ``queues``, or to all; raises StoreDown."""
        async with self._database.acquire() as connection:
            found = await connection.fetch(SQL["weights"])
        arguments: list[Argument] = []
        for row in found:
            arguments += (row["id"], row["weight"])
        for queue in await self._queues() if queues is None else queues:
            await self._scripts.weigh(keys_of(queue), arguments)

    async def run(self) -> None:
        """Repeat until cancelled; an outage is waited out."""
        while True:
            try:
                await self.run_once()
            except StoreDown as error:
                log.warning("stream.weights_wait", cause=str(error))
            await anyio.sleep(PERIOD_SECONDS)
