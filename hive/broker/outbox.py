"""Stream messages that belong to a transaction: written with it, sent after it.

A row of ``hive.outbox`` becomes visible when its transaction commits. Any process relays it: it locks the row
(``SKIP LOCKED``), sends, deletes. A crash between the two sends it again, which the stream's scripts notice
while the first one is alive; after that it is a duplicate, as any delivery may be.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import anyio

from hive.backoff import Backoff
from hive.broker.graveyard import RAW_BYTES, SQL
from hive.broker.port import Message, Published
from hive.broker.wire import Unparsable, decode, encode
from hive.errors import StoreDown
from hive.ids import QueueName
from hive.logger import get_logger
from hive.store.connection import Connection, Row
from hive.store.postgres import Database

log = get_logger(__name__)

MESSAGES_PER_ROUND: Final = 500
POLL_SECONDS: Final = 1.0
# The caller's transaction has yet to commit when its rows are written: look often for a moment.
SOON_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


class Outbox:
    """Takes messages into a caller's transaction and relays them with ``send``."""

    def __init__(
        self, database: Database, send: Callable[[Sequence[Message]], Awaitable[Sequence[Published]]]
    ) -> None:
        self._database = database
        self._send = send
        self._written = anyio.Event()

    async def put(self, connection: Connection, messages: Sequence[Message]) -> None:
        """Write ``messages`` in the caller's transaction."""
        await connection.execute(
            SQL["outbox_put"],
            [each.id for each in messages],
            [each.queue for each in messages],
            [encode(each).decode() for each in messages],
        )
        self._written.set()

    async def relay_once(self) -> int:
        """Send what is committed; returns how many rows left the outbox. Raises StoreDown."""
        async with self._database.transaction() as connection:
            found = await connection.fetch(SQL["outbox_take"], MESSAGES_PER_ROUND)
            if not found:
                return 0
            messages: list[Message] = []
            for row in found:
                try:
                    message = decode(row["message"].encode(), QueueName(row["queue"]))
                except Unparsable as error:
                    # Only a foreign writer gets here: `put` writes what it has encoded itself.
                    await _bury(connection, row, error)
                    continue
                if (fresh := _aged(message, row["age_seconds"])) is not None:
                    messages.append(fresh)
            await self._send(messages)
            await connection.execute(SQL["outbox_sent"], [row["id"] for row in found])
        return len(found)

    async def run(self) -> None:
        """Relay until cancelled; rides out outages."""
        backoff, failures = Backoff(first_seconds=0.1, max_seconds=2.0), 0
        soon: list[float] = []
        while True:
            try:
                sent = await self.relay_once()
                failures = 0
            except StoreDown as error:
                failures += 1
                log.warning("outbox.waiting", cause=str(error))
                await anyio.sleep(backoff.delay(failures))
                continue
            if sent == MESSAGES_PER_ROUND:
                continue
            if self._written.is_set():
                self._written = anyio.Event()
                soon = list(SOON_SECONDS)
            with anyio.move_on_after(soon.pop(0) if soon else POLL_SECONDS):
                await self._written.wait()


async def _bury(connection: Connection, row: Row, error: Unparsable) -> None:
    log.error("outbox.unparsable", queue=row["queue"], cause=error.message)
    raw = row["message"].encode()[:RAW_BYTES]
    letter = (
        row["id"],
        None,
        "",
        None,
        raw,
        None,
        1,
        None,
        "unparsable",
        "unparsable",
        error.message[:500],
        0,
    )
    await connection.execute(SQL["bury"], row["queue"], *([each] for each in letter))


def _aged(message: Message, age_seconds: float) -> Message | None:
    """A message after its time in the outbox; None when it expired there."""
    expires = message.expires_seconds
    if expires is not None:
        expires -= age_seconds
        if expires <= 0:
            return None
    return message._replace(
        delay_seconds=max(0.0, message.delay_seconds - age_seconds), expires_seconds=expires
    )
