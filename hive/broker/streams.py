"""Streams: queues in Redis. Fast and disposable, for ticks and fan-outs that a later tick would regenerate.

One stream a lane is the window that consumers read: of each tenant it holds its share, and the rest waits in
the tenant's own line. A packed record a message carries the rest: state, fence, owner, attempts, the wire
format. Every call is one script, so that no crash leaves half of it. Time is Redis' own. Fences are
numbers from blocks that Postgres reserves: they rise even across a wiped Redis.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import anyio

from hive.broker.graveyard import SQL
from hive.broker.ledger_rows import printable
from hive.broker.outbox import Outbox
from hive.broker.port import BrokerKind, Delivery, Message, Published, Settlement, Taker, Verdict
from hive.broker.stream_arguments import (
    by_queue,
    claim_arguments,
    deliveries_of,
    message_id,
    milliseconds,
    parts,
    publish_arguments,
    settle_arguments,
)
from hive.broker.stream_keys import QueueKeys, keys_of
from hive.broker.stream_link import Argument
from hive.broker.stream_operations import StreamOperations
from hive.broker.stream_wakeups import StreamWakeups
from hive.broker.stream_weights import StreamWeights
from hive.broker.wire import encode
from hive.errors import QueueFull, StoreDown
from hive.events import Events
from hive.ids import MessageId, ProcessId, QueueName
from hive.logger import get_logger
from hive.outcomes import Completed, Released
from hive.settings import Crashes
from hive.store.connection import Connection
from hive.store.postgres import Database
from hive.store.redis import RedisStore

log = get_logger(__name__)

FENCES_PER_BLOCK: Final = 1_000_000
CLAIMED_PER_CALL: Final = 1_000
PUSH_MILLISECONDS: Final = 2_000  # a process that waits asks again by then
VERDICTS: Final = {
    ord(letter): verdict
    for letter, verdict in (
        ("s", Verdict.STALE),
        ("a", Verdict.ACCEPTED),
        ("r", Verdict.RERUN),
        ("p", Verdict.POISONED),
    )
}


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
        max_depth: Mapping[QueueName, int] | None = None,
    ) -> None:
        del events
        super().__init__(store, database, lease_seconds=lease_seconds, crashes=crashes or Crashes())
        self._wakeups = StreamWakeups(store, lease_seconds)
        self._outbox = Outbox(database, self.publish)
        self._weights = StreamWeights(database, self._scripts, self._all_queues)
        self._outages = 0
        self._fenced: dict[QueueName, int] = {}
        self._max_depth = dict(max_depth or {})

    async def run(self) -> None:
        """Read wake-ups and relay the outbox until cancelled. Without it, ``wait`` polls."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._wakeups.run)
                group.start_soon(self._outbox.run)
                group.start_soon(self._weights.run)
                group.start_soon(self._return_leftover)
        finally:
            with anyio.move_on_after(2, shield=True), suppress(StoreDown):
                for queue, owner in self._wakeups.waiters:
                    await self._withdraw(queue, owner)
                await self._hand_back_leftover()

    @property
    def listening(self) -> bool:
        """Whether wake-ups are known to arrive; otherwise ``wait`` polls every 250 ms."""
        return self._wakeups.listening

    async def weigh_once(self, queues: Sequence[QueueName] | None = None) -> None:
        """Take the tenants' weights from Postgres for ``queues``, or for all; raises StoreDown."""
        await self._weights.run_once(queues)

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
        checked = len(positions) > 1 and await self._refuse_full(positions)
        for queue, mine in positions.items():
            most = None if checked else self._max_depth.get(queue)
            sending = self._send(queue, mine, encoded, answers, notify=notify, most=most)
            if queue in self._known:
                await sending
            else:
                # One behind the other on one connection: the queue is named before it holds anything.
                await asyncio.gather(self._know(queue), sending)
            if notify and any(messages[at].delay_seconds <= 0 for at in mine):
                self._wakeups.wake(queue)
        return answers

    async def _send(
        self,
        queue: QueueName,
        mine: Sequence[int],
        encoded: Sequence[tuple[Message, bytes]],
        answers: list[Published],
        *,
        notify: bool,
        most: int | None,
    ) -> None:
        """Publish those of ``encoded`` that ``mine`` names; notes in ``answers`` which were there already."""
        keys = keys_of(queue)
        following = len(mine)
        for part in parts(mine):
            following -= len(part)
            arguments: list[Argument] = []
            for at in part:
                arguments += publish_arguments(*encoded[at])
            holders = await self._scripts.publish(
                keys, arguments, notify=notify, most=most, following=following
            )
            if isinstance(holders, int):
                raise _full(queue, holders)
            most = None  # the first part has made sure for all
            for at, holder in zip(part, holders, strict=True):
                if holder:
                    answers[at] = Published(id=message_id(holder), duplicate=True)

    async def claim(self, queue: QueueName, owner: ProcessId, limit: int) -> list[Delivery]:
        """Take up to ``limit`` messages, higher lanes first."""
        if limit <= 0:
            return []
        keys = keys_of(queue)
        await self._know(queue)
        try:
            # After an outage Redis may have come back a second younger: its counter would repeat itself.
            if self._fenced.setdefault(queue, self.outages) != self.outages:
                await self._reserve_fences(keys)
            limit = min(limit, CLAIMED_PER_CALL)
            patience = PUSH_MILLISECONDS if self._wakeups.reads(queue, owner) else 0
            arguments = (owner.bytes, owner.hex, limit, milliseconds(self.lease_seconds), patience)
            answer = await self._scripts.claim(keys, arguments)
            while answer[0] == 0:
                await self._reserve_fences(keys)
                answer = await self._scripts.claim(keys, arguments)
        except StoreDown:
            self._outages += 1
            raise
        deliveries, unreadable = deliveries_of(answer, queue, owner)
        if deliveries:
            self._wakeups.leave(queue, owner.bytes)
        self._wakeups.due_in(queue, answer[2])
        if unreadable or answer[1]:
            await self._give_up(keys, unreadable)
        return deliveries

    def receive(self, queue: QueueName, owner: ProcessId, taker: Taker | None) -> None:
        """Hand a lone message that is published while ``owner`` waits to ``taker``."""
        self._wakeups.receive(queue, owner, taker)

    async def withdraw(self, queue: QueueName, owner: ProcessId) -> None:
        """Have nothing more given to ``owner`` before it asks again."""
        if (queue, owner.bytes) in self._wakeups.waiters:
            await self._withdraw(queue, owner.bytes)

    async def _withdraw(self, queue: QueueName, owner: bytes) -> None:
        await self._scripts.withdraw(keys_of(queue), owner)
        self._wakeups.leave(queue, owner)

    async def _return_leftover(self) -> None:
        """Hand back what came to one that takes nothing any more."""
        while True:
            await self._wakeups.leftover.wait()
            with suppress(StoreDown):
                await self._hand_back_leftover()

    async def _hand_back_leftover(self) -> None:
        """Hand back what came and will not be run. While Redis is away it stays leased."""
        with anyio.CancelScope(shield=True):
            for queue, left, unreadable in self._wakeups.take_leftover():
                if unreadable:
                    await self._give_up(keys_of(queue), unreadable)
                await self.settle([Settlement(delivery=each, outcome=Released()) for each in left])

    async def _refuse_full(self, positions: Mapping[QueueName, Sequence[int]]) -> bool:
        """Raise QueueFull before any of several queues has taken something; a duplicate counts as well."""
        for queue, mine in positions.items():
            most = self._max_depth.get(queue)
            if most is not None:
                waiting, delayed, *_ = await self._scripts.depth(keys_of(queue))
                if waiting + delayed + len(mine) > most:
                    raise _full(queue, waiting + delayed)
        return True

    @property
    def outages(self) -> int:
        """How often Redis was seen to be away."""
        return self._outages + self._wakeups.outages

    async def _reserve_fences(self, keys: QueueKeys) -> None:
        seen = self.outages
        async with self._database.statements() as connection:
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
                count, verdicts = await self._scripts.settle(
                    keys,
                    owner.bytes,
                    self._crashes.child_limit,
                    settle_arguments(settlements[at] for at in part),
                )
                given_up += count
                for at, verdict in zip(part, verdicts, strict=True):
                    answers[at] = VERDICTS[verdict]
            if given_up:
                await self._give_up(keys, ())
        return answers

    async def progress(self, delivery: Delivery, *, stage: str, done: int | None, total: int | None) -> bool:
        """Record the progress and reset the crash budgets."""
        state = json.dumps({"stage": printable(stage, 200), "done": done, "total": total})
        return await self._scripts.progress(keys_of(delivery.queue), (*claim_arguments([delivery]), state))

    async def cancel_requested(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those whose flag is set."""
        flagged: list[Delivery] = []
        for keys, mine in by_queue(deliveries):
            for part in parts(mine):
                found = await self._scripts.flagged(keys, claim_arguments(part))
                flagged += [part[at] for at in found]
        return flagged


def _full(queue: QueueName, waiting: int) -> QueueFull:
    return QueueFull(f"{waiting} messages wait in {queue}", remedy="publish again once some have run")
