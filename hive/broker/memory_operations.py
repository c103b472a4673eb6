"""The memory broker's records, and what operators do with them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from hive.broker.memory_lines import Line
from hive.broker.memory_records import WAITING, Key, Record, dead_letter_of
from hive.broker.port import DeadLetter, Depth, Taker, TenantBacklog
from hive.broker.wakeups import Wakeups
from hive.clock import Clock
from hive.errors import Conflict, InvalidInput
from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId
from hive.states import JobState, allowed

COUNTED_TO: Final = 10_001


class MemoryOperations:
    """All messages of a memory broker, with the operators' part of its contract."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[MessageId, Record] = {}
        self._lines: dict[QueueName, Line] = {}
        self._keys: dict[Key, MessageId] = {}
        self._places = count(1)
        self._wakeups = Wakeups()
        self._paused: set[QueueName] = set()

    async def cancel(self, ids: Sequence[MessageId], *, tenant: TenantId | None = None) -> int:
        """Cancel what waits, flag what runs."""
        touched = 0
        for id in dict.fromkeys(ids):
            record = self._records.get(id)
            if record is None or tenant not in (None, record.message.tenant):
                continue
            if record.state is JobState.RUNNING:
                record.cancel_requested, record.rerun = True, False
            elif record.state in WAITING:
                self._move(record, JobState.CANCELLED)
                self._end(record)
            else:
                continue
            touched += 1
        return touched

    async def depth(self, queue: QueueName) -> Depth:
        """Counts of one queue."""
        now = self._clock.monotonic()
        mine = [each for each in self._records.values() if each.message.queue == queue]
        ages = [now - each.run_at for each in mine if each.state is JobState.PENDING]
        running = sum(each.state is JobState.RUNNING for each in mine)
        delayed = sum(each.state in WAITING for each in mine) - len(ages)
        counts = [min(each, COUNTED_TO) for each in (len(ages), delayed, running)]
        return Depth(
            queue=queue,
            waiting=counts[0],
            delayed=counts[1],
            running=counts[2],
            oldest_seconds=max(ages, default=None),
        )

    async def announce(self, owner: ProcessId, slots: Mapping[QueueName, int]) -> None:
        """Nothing to note: shares are computed from what is in flight, at each claim."""

    def receive(self, queue: QueueName, owner: ProcessId, taker: Taker | None) -> None:
        """Nothing to hand over: nothing is given but to a claim."""

    async def withdraw(self, queue: QueueName, owner: ProcessId) -> None:
        """Nothing to take back: nothing is given but to a claim."""

    async def pause(self, queue: QueueName) -> None:
        """Hand out nothing more of ``queue``."""
        self._paused.add(queue)

    async def resume(self, queue: QueueName) -> None:
        """Hand out messages of ``queue`` again."""
        self._paused.discard(queue)
        self._wakeups.wake(queue)

    async def paused(self) -> frozenset[QueueName]:
        """The queues that are paused."""
        return frozenset(self._paused)

    async def cancel_where(
        self,
        *,
        queue: QueueName | None = None,
        tenant: TenantId | None = None,
        task: TaskName | None = None,
    ) -> int:
        """Cancel what waits and flag what runs, of all that fits."""
        if queue is None and tenant is None and task is None:
            raise InvalidInput("filter", "none given: it would cancel everything")
        return await self.cancel(
            [
                each.message.id
                for each in self._records.values()
                if queue in (None, each.message.queue)
                and tenant in (None, each.message.tenant)
                and task in (None, each.message.task)
                and not each.cancel_requested
            ]
        )

    async def backlog(
        self, queue: QueueName, *, after: TenantId | None = None, limit: int = 100
    ) -> list[TenantBacklog]:
        """What each tenant has, in the order of their ids; system work comes first."""
        now = self._clock.monotonic()
        mine = [
            each
            for each in self._records.values()
            if each.message.queue == queue
            and each.state in (JobState.PENDING, JobState.RUNNING)
            and (after is None or (each.message.tenant or "") > after)
        ]
        page: list[TenantBacklog] = []
        for tenant in sorted({each.message.tenant for each in mine}, key=lambda each: each or "")[:limit]:
            theirs = [each for each in mine if each.message.tenant == tenant]
            ages = [now - each.run_at for each in theirs if each.state is JobState.PENDING]
            page.append(
                TenantBacklog(
                    tenant=tenant,
                    waiting=min(len(ages), COUNTED_TO),
                    running=min(len(theirs) - len(ages), COUNTED_TO),
                    oldest_seconds=max(ages, default=None),
                )
            )
        return page

    async def position(self, id: MessageId) -> int | None:
        """How many stand before it in its tenant's line, or None when it does not wait."""
        record = self._records.get(id)
        if record is None or record.state is not JobState.PENDING:
            return None
        message, place = record.message, (record.run_at, record.place)
        before = [
            each
            for each in self._records.values()
            if each.state is JobState.PENDING
            and (each.message.queue, each.message.tenant, each.message.lane)
            == (message.queue, message.tenant, message.lane)
            and (each.run_at, each.place) < place
        ]
        return min(len(before), COUNTED_TO)

    async def dead_letters(
        self, *, queue: QueueName | None = None, tenant: TenantId | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """Failed messages, the newest first."""
        dead = [
            each
            for each in reversed(self._records.values())
            if each.state is JobState.FAILED
            and queue in (None, each.message.queue)
            and tenant in (None, each.message.tenant)
        ]
        return [dead_letter_of(each) for each in dead[:limit]]

    async def replay(self, ids: Sequence[MessageId]) -> int:
        """Put failed messages back in line: all of those that ``ids`` names, or none."""
        dead = [
            self._records[id]
            for id in dict.fromkeys(ids)
            if id in self._records and self._records[id].state is JobState.FAILED
        ]
        keys: dict[Key, MessageId] = dict(self._keys)
        for each in dead:
            if each.key is not None:
                holder = keys.setdefault(each.key, each.message.id)
                if holder != each.message.id:
                    raise Conflict(
                        f"message {each.message.id} cannot run again: {holder} holds the same key",
                        remedy="wait for its end",
                    )
        for each in dead:
            self._move(each, JobState.PENDING)
            each.attempt = each.child_crashes = each.hive_crashes = 0
            each.redelivered = each.cancel_requested = each.rerun = False
            each.error = each.expires_at = each.finished_at = None
            each.run_at, each.place = self._clock.monotonic(), next(self._places)
            if each.key is not None:
                self._keys[each.key] = each.message.id
            self._line_up(each)
        return len(dead)

    async def purge(self, ids: Sequence[MessageId]) -> int:
        """Delete failed messages for good."""
        gone = 0
        for id in dict.fromkeys(ids):
            if id in self._records and self._records[id].state is JobState.FAILED:
                del self._records[id]
                gone += 1
        return gone

    def _running(self) -> Iterator[Record]:
        return (each for each in self._records.values() if each.state is JobState.RUNNING)

    def _move(self, record: Record, after: JobState) -> None:
        assert allowed(record.state, after), (record.state, after)
        record.state = after

    def _waiting(self, queue: QueueName) -> int:
        return sum(each.message.queue == queue and each.state in WAITING for each in self._records.values())

    def _line_up(self, record: Record, *, notify: bool = True) -> None:
        if record.state is not JobState.PENDING:
            self._move(record, JobState.PENDING)
        message = record.message
        self._lines.setdefault(message.queue, Line()).add(record)
        if notify:
            self._wakeups.wake(message.queue)

    def _end(self, record: Record) -> None:
        record.finished_at = self._clock.now()
        if record.key is not None:
            self._keys.pop(record.key, None)
        # Failed ones move to the end of the dictionary, so that it lists dead letters by age.
        del self._records[record.message.id]
        if record.state is JobState.FAILED:
            self._records[record.message.id] = record
