"""How a process learns that a ledger queue has something to claim.

``LISTEN`` on a connection of its own, with a slow poll behind it, since a notification can be lost with its
connection. Behind a transaction pooler ``LISTEN`` is accepted and then stays silent; so the listener sends
itself a notification, and until that has come back the queue is polled every 250 ms.
"""

from typing import Final
from uuid import uuid4

import anyio

from hive.backoff import Backoff
from hive.broker.wakeups import Wakeups
from hive.errors import StoreDown
from hive.ids import QueueName
from hive.logger import get_logger
from hive.store.postgres import Database

log = get_logger(__name__)

CHANNEL: Final = "hive_queue_"
SLOW_POLL_SECONDS: Final = 2.0
FAST_POLL_SECONDS: Final = 0.25
PROOF_SECONDS: Final = 5.0
GATHER_SECONDS: Final = 0.1
"""A start's queues come one after the other: one connection listens for all, instead of one for each few."""


class LedgerWakeups(Wakeups):
    """Wake-ups by ``LISTEN``; polls while that is not proven to work."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._probe = f"hive_probe_{uuid4().hex}"
        self._proven = anyio.Event()
        self._probed = 0

    @property
    def listening(self) -> bool:
        """Whether notifications are known to arrive."""
        return self._proven.is_set()

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return after a wake of ``queue``, a poll's period, or ``timeout_seconds``."""
        poll = SLOW_POLL_SECONDS if self.listening else FAST_POLL_SECONDS
        await super().wait(queue, min(timeout_seconds, poll))

    async def run(self) -> None:
        """Listen for every queue that is waited for, until cancelled."""
        while True:
            await self.grown_beyond(frozenset())
            await anyio.sleep(GATHER_SECONDS)
            await self._listen_until_grown(self.queues)

    async def _listen_until_grown(self, queues: frozenset[QueueName]) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._listen, queues)
                await self.grown_beyond(queues)
                group.cancel_scope.cancel()
        finally:
            self._proven = anyio.Event()

    async def _listen(self, queues: frozenset[QueueName]) -> None:
        channels = [self._probe, *(CHANNEL + each for each in queues)]
        backoff, failures = Backoff(first_seconds=0.1, max_seconds=2.0), 0
        while True:
            self._proven = anyio.Event()
            self._probed = 0
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._prove)
                    try:
                        await self._database.listen(channels, self._on_notify)
                    finally:
                        group.cancel_scope.cancel()
            except* StoreDown as errors:
                if self.listening:
                    failures = 0
                failures += 1
                log.warning("ledger.listener_lost", cause=str(errors.exceptions[0]))
            self._proven = anyio.Event()
            self.wake_all()
            await anyio.sleep(backoff.delay(max(1, failures)))

    async def _prove(self) -> None:
        """Notify ourselves until it arrives, whatever becomes of the connections we say it over."""
        said = False
        pause = 0.02
        waited = 0.0
        while not self.listening:
            try:
                async with self._database.statements() as connection:
                    await connection.execute("select pg_notify($1, '')", self._probe)
            except StoreDown as error:
                log.debug("ledger.probe_unsaid", cause=str(error))
            with anyio.move_on_after(pause):
                await self._proven.wait()
            waited += pause
            pause = min(pause * 2, 5.0)
            if waited > PROOF_SECONDS and not self.listening and not said:
                said = True
                log.warning(
                    "ledger.polling",
                    reason="LISTEN stays silent: postgres.dsn seems to be a transaction pooler",
                    remedy="set postgres.direct_dsn",
                )
        # What came before the listener was up is found now, not at the next slow poll.
        self.wake_all()

    def _on_notify(self, channel: str) -> None:
        if channel == self._probe:
            # `listen` calls once for each channel when it begins; the second time somebody really notified.
            self._probed += 1
            if self._probed > 1:
                self._proven.set()
        else:
            self.wake(QueueName(channel.removeprefix(CHANNEL)))
