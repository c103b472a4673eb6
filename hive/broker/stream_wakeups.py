"""How a process learns that a stream queue has something to claim: one blocking reader for all its queues.

Each queue has a *wake* stream of one entry that changes when the queue stops being empty. A reader sees every
change after the one it saw last, so that none is lost between two reads and every process is woken.
(A list to pop from was considered: its token goes to one process, which may have no free slot.)
"""

from typing import Any, Final

import anyio
import structlog

from hive.backoff import Backoff
from hive.broker.stream_keys import keys_of
from hive.broker.wakeups import Wakeups
from hive.errors import StoreDown
from hive.ids import QueueName
from hive.store.redis import RedisStore

log = structlog.get_logger(__name__)

SLOW_POLL_SECONDS: Final = 2.0
FAST_POLL_SECONDS: Final = 0.25
BLOCK_MILLISECONDS: Final = 1_900


class StreamWakeups(Wakeups):
    """Wake-ups by a blocking read; polls while there is none. ``outages`` counts its lost connections."""

    def __init__(self, store: RedisStore) -> None:
        super().__init__()
        self._store = store
        self._seen: dict[str, bytes] = {}
        self._reading = False
        self._due: dict[QueueName, float] = {}
        self.outages = 0

    @property
    def listening(self) -> bool:
        """Whether a blocking read has answered since the last outage."""
        return self._reading

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return after a wake of ``queue``, a poll's period, or ``timeout_seconds``."""
        poll = SLOW_POLL_SECONDS if self._reading else FAST_POLL_SECONDS
        due = self._due.pop(queue, poll)
        await super().wait(queue, min(timeout_seconds, poll, due))

    def due_in(self, queue: QueueName, milliseconds: int) -> None:
        """Let the next wait for ``queue`` end when its next delayed message is due; -1 if there is none."""
        if milliseconds >= 0:
            self._due[queue] = milliseconds / 1000 + 0.001
        else:
            self._due.pop(queue, None)

    async def run(self) -> None:
        """Read until cancelled; rides out outages."""
        backoff, failures = Backoff(first_seconds=0.05, max_seconds=1.0), 0
        while True:
            await self.grown_beyond(frozenset())
            client = self._store.blocking_client(block_seconds=BLOCK_MILLISECONDS / 1000, connections=1)
            try:
                while True:
                    queues = self.queues
                    async with anyio.create_task_group() as group:
                        group.start_soon(self._read, client, queues)
                        await self.grown_beyond(queues)
                        group.cancel_scope.cancel()
            except* StoreDown as errors:
                failures = 1 if self._reading else failures + 1
                self.outages += 1
                log.warning("stream.reader_lost", cause=str(errors.exceptions[0]))
            finally:
                self._reading = False
                with anyio.move_on_after(2, shield=True):
                    await client.aclose()
            self.wake_all()
            await anyio.sleep(backoff.delay(failures))

    async def _read(self, client: Any, queues: frozenset[QueueName]) -> None:
        wakes = {keys_of(each).wake: each for each in queues}
        while True:
            with self._store.translating("waiting for messages"):
                places = {key: self._seen.get(key, b"0-0") for key in wakes}
                answer = await client.xread(places, block=BLOCK_MILLISECONDS)
            self._reading = True
            for key, entries in (answer or {}).items():
                name = key.decode()
                self._seen[name] = entries[-1][0]
                self.wake(wakes[name])
