"""How a process learns that a stream queue has something to claim: one blocking reader for all its queues.

Each queue has a short *wake* stream that gets an entry when there is something for those who found nothing.
To one of them a lone message may be given with it; the others pass over that entry. A reader sees every
change after the one it saw last, so that none is lost between two reads and every process is woken.
(A list to pop from was considered: its token goes to one process, which may have no free slot.)
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, Final

import anyio
import hiredis

from hive.backoff import Backoff
from hive.broker.port import Delivery, Taker
from hive.broker.stream_arguments import deliveries_of, milliseconds
from hive.broker.stream_connection import StreamConnection
from hive.broker.stream_keys import keys_of
from hive.broker.stream_link import Argument
from hive.broker.wakeups import Wakeups
from hive.clock import SystemClock
from hive.errors import StoreDown
from hive.ids import ProcessId, QueueName
from hive.logger import get_logger
from hive.store.redis import Client, RedisStore

log = get_logger(__name__)

SLOW_POLL_SECONDS: Final = 2.0
FAST_POLL_SECONDS: Final = 0.25
BLOCK_SECONDS: Final = 1.9
AGAIN_SECONDS: Final = 0.001  # from something that came to the next read


class StreamWakeups(Wakeups):
    """Wake-ups by a blocking read; polls while there is none. ``outages`` counts its lost connections.

    ``lease_seconds``: of what is given with a wake-up. Its lease began before it was read, at a time that is
    known as exactly as a read is long: so one takes no large part of a lease.
    """

    def __init__(self, store: RedisStore, lease_seconds: float) -> None:
        super().__init__()
        self._store = store
        self._block_seconds = min(BLOCK_SECONDS, lease_seconds / 10)
        self._seen: dict[str, bytes] = {}
        self._reading = False
        self._due: dict[QueueName, float] = {}
        self._read_now: frozenset[QueueName] = frozenset()
        self._takers: dict[tuple[QueueName, bytes], tuple[ProcessId, Taker | None]] = {}
        self._waiters: set[tuple[QueueName, bytes]] = set()
        self._left: list[tuple[QueueName, list[Delivery], list[Argument]]] = []
        self.leftover = asyncio.Event()  # something came that nobody took
        self.outages = 0

    @property
    def listening(self) -> bool:
        """Whether a blocking read is under way."""
        return self._reading

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return after a wake of ``queue``, a poll's period, or ``timeout_seconds``."""
        poll = SLOW_POLL_SECONDS if self._reading else FAST_POLL_SECONDS
        due = self._due.pop(queue, poll)
        await super().wait(queue, min(timeout_seconds, poll, due))

    def receive(self, queue: QueueName, owner: ProcessId, taker: Taker | None) -> None:
        """Hand what comes for ``owner`` to ``taker``."""
        self._takers[queue, owner.bytes] = (owner, taker)

    def reads(self, queue: QueueName, owner: ProcessId) -> bool:
        """Whether a message that is given to ``owner`` with a wake-up would be taken at once."""
        _, taker = self._takers.get((queue, owner.bytes), (owner, None))
        if taker is None or not self._reading or queue not in self._read_now:
            return False
        self._waiters.add((queue, owner.bytes))
        return True

    @property
    def waiters(self) -> list[tuple[QueueName, bytes]]:
        """Those to whom something may be given."""
        return list(self._waiters)

    def leave(self, queue: QueueName, owner: bytes) -> None:
        """Nothing is given to ``owner`` any more."""
        self._waiters.discard((queue, owner))

    def take_leftover(self) -> list[tuple[QueueName, list[Delivery], list[Argument]]]:
        """What nobody took, and what ``reject.lua`` takes for the unreadable; it is handed over."""
        self.leftover.clear()
        left, self._left = self._left, []
        return left

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
            client = self._store.blocking_client(block_seconds=self._block_seconds, connections=1)
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

    async def _read(self, client: Client, queues: frozenset[QueueName]) -> None:
        """Read for ``queues`` until cancelled, or until the connection is lost: raises StoreDown."""
        streams = {keys_of(each).wake: each for each in queues}
        reader = _Reader(client, streams, self._seen, self._came, self._block_seconds)
        try:
            with self._store.translating("waiting for messages"):
                async with asyncio.timeout(client.seconds):
                    await reader.open()
            self._read_now, self._reading = queues, True
            with self._store.translating("waiting for messages"):
                await reader.ended
        finally:
            await reader.close()

    def _came(self, queue: QueueName, fields: Mapping[bytes, bytes], after: float) -> None:
        """Hand over what was given to us; wake who may find something."""
        if b"o" in fields:
            known = self._takers.get((queue, fields[b"o"]))
            if known is None or b"i" not in fields or b"r" not in fields:
                return
            self._hand_over(queue, *known, (1, 0, -1, fields[b"i"], fields[b"r"]), after)
        self.wake(queue)

    def _hand_over(
        self, queue: QueueName, owner: ProcessId, taker: Taker | None, given: Sequence[Any], after: float
    ) -> None:
        """At once, here: until who was woken for it had claimed it, a third of its way passed."""
        deliveries, unreadable = deliveries_of(given, queue, owner)
        left = [each for each in deliveries if taker is None or not taker(each, after)]
        if left or unreadable:
            self._left.append((queue, left, unreadable))
            self.leftover.set()


class _Reader:
    """One blocking read after the other.

    ``seen``: each stream's last entry. ``came`` is told of the next, and after what moment it was
    written: when the read before was asked for, which would have found it.
    """

    def __init__(
        self,
        client: Client,
        queues: Mapping[str, QueueName],
        seen: dict[str, bytes],
        came: Callable[[QueueName, Mapping[bytes, bytes], float], None],
        block_seconds: float,
    ) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._seconds = client.seconds
        self._queues = queues
        self._seen = seen
        self._came = came
        self._block = milliseconds(block_seconds)  # never 0, which is for ever
        self._loop = asyncio.get_running_loop()
        self._now = SystemClock().monotonic
        self._asked = self._asked_before = -inf
        self._connection = StreamConnection(client.connection_pool, answered=self._answered, lost=self._lost)
        self._due = inf  # when the answer is late
        self._watch: asyncio.TimerHandle | None = None
        self._next: asyncio.Handle | None = None

    async def open(self) -> None:
        """Connect and begin."""
        await self._connection.open()
        self._ask()

    async def close(self) -> None:
        """End, whatever comes."""
        if not self.ended.cancel() and not self.ended.cancelled():
            self.ended.exception()  # seen, or not wanted any more
        for timer in (self._watch, self._next):
            if timer is not None:
                timer.cancel()
        with anyio.CancelScope(shield=True):
            await self._connection.close()

    def _ask(self) -> None:
        self._asked_before, self._asked = self._asked, self._now()
        places = [self._seen.get(key, b"0-0") for key in self._queues]
        command = ("XREAD", "BLOCK", self._block, "STREAMS", *self._queues, *places)
        self._connection.send(hiredis.pack_command(command))  # pyright: ignore[reportArgumentType]
        self._due = self._loop.time() + self._seconds
        if self._watch is None:
            self._watch = self._loop.call_at(self._due, self._look)

    def _answered(self, answer: Any) -> None:
        self._due = inf
        if isinstance(answer, Exception):
            self._connection.abort(answer)
            return
        for key, entries in (answer or {}).items():
            name = key.decode()
            self._seen[name] = entries[-1][0]
            for _, fields in entries:
                pairs = dict(zip(fields[::2], fields[1::2], strict=True))
                self._came(self._queues[name], pairs, self._asked_before)
        self._next = self._loop.call_soon(self._rest if answer else self._ask)

    def _rest(self) -> None:
        """Let what was woken run first: it may be what somebody waits for."""
        self._next = self._loop.call_later(AGAIN_SECONDS, self._ask)

    def _look(self) -> None:
        """One timer for all reads, as for the calls of a ``StreamLink``."""
        self._watch = None
        if self._due <= self._loop.time():
            self._connection.abort(TimeoutError("no answer in time"))
        elif self._due < inf:
            self._watch = self._loop.call_at(self._due, self._look)

    def _lost(self, cause: Exception) -> None:
        if not self.ended.done():
            self.ended.set_exception(cause)
