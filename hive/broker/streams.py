"""Streams: queues in Redis. Fast and disposable, for ticks and fan-outs that a later tick would regenerate.

One stream a lane carries the wire format; a small hash beside each entry carries what changes: state, fence,
owner, attempts. Every call is one script, so that no crash leaves half of it. Time is Redis' own. Fences are
numbers from blocks that Postgres reserves: they rise even across a wiped Redis.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

import anyio
import structlog

from hive.broker.graveyard import SQL
from hive.broker.ledger_rows import printable
from hive.broker.outbox import Outbox
from hive.broker.port import BrokerKind, Delivery, Message, Published, Settlement, Verdict
from hive.broker.stream_arguments import (
    by_queue,
    claim_arguments,
    delivery_of,
    milliseconds,
    parts,
    publish_arguments,
    settle_arguments,
)
from hive.broker.stream_keys import QUEUES, QueueKeys, keys_of
from hive.broker.stream_operations import StreamOperations
from hive.broker.stream_scripts import Argument
from hive.broker.stream_wakeups import StreamWakeups
from hive.broker.wire import Unparsable, decode, encode
from hive.errors import StoreDown
from hive.events import Events
from hive.ids import MessageId, ProcessId, QueueName
from hive.outcomes import Completed
from hive.settings import Crashes
from hive.store.connection import Connection
from hive.store.postgres import Database
from hive.store.redis import RedisStore

log = structlog.get_logger(__name__)

FENCES_PER_BLOCK: Final = 1_000_000
CLAIMED_PER_CALL: Final = 1_000


class Streams(StreamOperations):
    """The broker contract over Redis Streams; see ``hive.broker.port`` for what each method promises.

    ``database`` holds dead letters, the outbox and the blocks of fences. ``lease_seconds``: how long a claim
    holds without a renewal, by Redis' clock. ``run()`` is its background service.
    """

    kind = BrokerKind.STREAM

    def __init__(
        self,
        store: RedisStore,
        database: Database,
        *,
        lease_seconds: float = 60.0,
        crashes: Crashes | None = None,
        events: Events | None = None,
    ) -> None:
        del events
        super().__init__(store, database, lease_seconds=lease_seconds, crashes=crashes or Crashes())
        self._wakeups = StreamWakeups(store)
        self._outbox = Outbox(database, self.publish)
        self._outages = 0
        self._fenced: dict[QueueName, int] = {}

    async def run(self) -> None:
        """Read wake-ups and relay the outbox until cancelled. Without it, ``wait`` polls."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._wakeups.run)
            group.start_soon(self._outbox.run)

    @property
    def listening(self) -> bool:
        """Whether wake-ups are known to arrive; otherwise ``wait`` polls every 250 ms."""
        return self._wakeups.listening

    async def relay_once(self) -> int:
        """Send what committed transactions have left in the outbox; returns how many."""
        return await self._outbox.relay_once()

    async def publish(
        self, messages: Sequence[Message], *, connection: Connection | None = None, notify: bool = True
    ) -> list[Published]:
        """Put ``messages`` in line; with ``connection`` they go to the outbox and are sent after its commit.

        In the outbox no key is looked at: such an answer is never a duplicate.
        """
        if not messages:
            return []
        if connection is not None:
            await self._outbox.put(connection, messages)
            return [Published(id=each.id) for each in messages]
        positions: dict[QueueName, list[int]] = {}
        encoded = [(each, encode(each)) for each in messages]
        for at, each in enumerate(messages):
            positions.setdefault(each.queue, []).append(at)
        answers = [Published(id=each.id) for each in messages]
        for queue, mine in positions.items():
            keys = keys_of(queue)
            await self._know(queue)
            for part in parts(mine):
                arguments: list[Argument] = [int(notify)]
                for at in part:
                    arguments += publish_arguments(*encoded[at])
                for at, holder in zip(part, await self._scripts.publish(keys, arguments), strict=True):
                    if holder:
                        answers[at] = Published(id=MessageId(UUID(hex=holder.decode())), duplicate=True)
            if notify and any(messages[at].delay_seconds <= 0 for at in mine):
                self._wakeups.wake(queue)
        return answers

    async def claim(self, queue: QueueName, owner: ProcessId, limit: int) -> list[Delivery]:
        """Take up to ``limit`` messages, higher lanes first."""
        if limit <= 0 or queue in await self.paused():
            return []
        keys = keys_of(queue)
        await self._know(queue)
        try:
            # After an outage Redis may have come back a second younger: its counter would repeat itself.
            if self._fenced.setdefault(queue, self.outages) != self.outages:
                await self._reserve_fences(keys)
            arguments = (owner.hex, min(limit, CLAIMED_PER_CALL), milliseconds(self.lease_seconds))
            answer = await self._scripts.claim(keys, *arguments)
            while answer[0] == 0:
                await self._reserve_fences(keys)
                answer = await self._scripts.claim(keys, *arguments)
        except StoreDown:
            self._outages += 1
            raise
        deliveries: list[Delivery] = []
        unreadable: list[Argument] = []
        for at in range(2, len(answer), 8):
            id, lane, entry, wire, fence, attempt, redelivered, published = answer[at : at + 8]
            try:
                message = decode(wire, queue)
                if message.id.hex.encode() != id:
                    raise Unparsable("its id is not the entry's")
            except Unparsable as error:
                unreadable += (id, fence, printable(error.message, 500))
                continue
            deliveries.append(
                delivery_of(
                    message,
                    owner,
                    fence=int(fence),
                    attempt=attempt,
                    redelivered=bool(redelivered),
                    receipt=f"{lane - 1}:{entry.decode()}",
                    published_ms=int(published),
                )
            )
        if unreadable or answer[1]:
            await self._give_up(keys, unreadable)
        return deliveries

    @property
    def outages(self) -> int:
        """How often Redis was seen to be away."""
        return self._outages + self._wakeups.outages

    async def _reserve_fences(self, keys: QueueKeys) -> None:
        seen = self.outages
        async with self._database.acquire() as connection:
            end = await connection.fetchval(SQL["reserve_fences"], keys.queue, FENCES_PER_BLOCK)
        await self._scripts.set_fences(keys, end - FENCES_PER_BLOCK, end)
        self._fenced[keys.queue] = seen

    async def _give_up(self, keys: QueueKeys, unreadable: Sequence[Argument]) -> None:
        """Dead-letter what cannot be read. While a store is away that has to wait for a sweep."""
        try:
            if unreadable:
                await self._scripts.reject(keys, unreadable)
            await self._graveyard.bury(keys)
        except StoreDown as error:
            log.warning("stream.burial_waits", queue=keys.queue, cause=str(error))

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return when the queue stops being empty, or after the slow poll's period at the latest."""
        await self._wakeups.wait(queue, timeout_seconds)

    async def renew(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Extend the leases by Redis' clock; returns the lost ones. One round trip a queue."""
        lost: list[Delivery] = []
        for keys, mine in by_queue(deliveries):
            for part in parts(mine):
                found = await self._scripts.renew(
                    keys, milliseconds(self.lease_seconds), claim_arguments(part)
                )
                lost += [part[at] for at in found]
        return lost

    async def mark_started(self, deliveries: Sequence[Delivery]) -> None:
        """Note that their handlers were entered."""
        for keys, mine in by_queue(deliveries):
            for part in parts(mine):
                await self._scripts.mark_started(keys, claim_arguments(part))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Write all outcomes, one script a queue. Failed ones are in ``hive.dead_letter`` afterwards."""
        answers = [Verdict.STALE] * len(settlements)
        seen: set[tuple[MessageId, int]] = set()
        groups: dict[tuple[QueueName, ProcessId], list[int]] = {}
        for at, each in enumerate(settlements):
            mark = (each.delivery.id, each.delivery.fence)
            if isinstance(each.outcome, Completed) and each.outcome.settled:
                answers[at] = Verdict.ACCEPTED
            elif mark not in seen:
                seen.add(mark)
                groups.setdefault((each.delivery.queue, each.delivery.owner), []).append(at)
        for (queue, owner), mine in groups.items():
            keys = keys_of(queue)
            given_up = 0
            for part in parts(mine):
                arguments: list[Argument] = []
                for at in part:
                    arguments += settle_arguments(settlements[at])
                count, verdicts = await self._scripts.settle(
                    keys, owner.hex, self._crashes.child_limit, arguments
                )
                given_up += count
                for at, verdict in zip(part, verdicts, strict=True):
                    answers[at] = Verdict(verdict.decode())
            if given_up:
                await self._give_up(keys, ())
        return answers

    async def progress(self, delivery: Delivery, *, stage: str, done: int | None, total: int | None) -> bool:
        """Record the progress and reset the crash budgets."""
        counts = ("" if done is None else done, "" if total is None else total)
        return await self._scripts.progress(
            keys_of(delivery.queue), (*claim_arguments([delivery]), printable(stage, 200), *counts)
        )

    async def cancel_requested(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those whose flag is set."""
        flagged: list[Delivery] = []
        for keys, mine in by_queue(deliveries):
            for part in parts(mine):
                arguments: list[Argument] = []
                for each in part:
                    arguments += (each.id.hex, each.fence)
                flagged += [part[at] for at in await self._scripts.flagged(keys, arguments)]
        return flagged

    async def _know(self, queue: QueueName) -> None:
        """Enter the queue in the set of all queues, once."""
        if queue not in self._known:
            with self._store.translating("naming a queue"):
                await self._store.client.execute_command("SADD", QUEUES, queue)
            self._known.add(queue)
