"""A broker in this process's memory, for tests. It keeps the same contract as the others.

Time is the given clock's: a test moves leases and delays by moving the clock.
"""

import asyncio
import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from hive.broker.memory_records import (
    EXPIRED,
    WAITING,
    Key,
    Line,
    Record,
    dead_letter_of,
    decide,
    delivery_of,
    poison,
)
from hive.broker.port import (
    BrokerKind,
    DeadLetter,
    Delivery,
    Depth,
    Message,
    Published,
    Settlement,
    Swept,
    TenantBacklog,
    Verdict,
)
from hive.broker.wakeups import Wakeups
from hive.broker.wire import decode, encode
from hive.clock import Clock
from hive.errors import ConfigurationError, Conflict, InvalidInput
from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId
from hive.outcomes import Released, Retrying
from hive.settings import Crashes
from hive.states import TERMINAL, JobState, allowed
from hive.store.connection import Connection

COUNTED_TO: Final = 10_001


class Memory:
    """The broker contract in memory; see ``hive.broker.port`` for what each method promises.

    ``lease_seconds`` is measured by ``clock``. ``transactions`` are not supported: ``connection`` is refused.
    """

    kind = BrokerKind.MEMORY

    def __init__(self, clock: Clock, *, lease_seconds: float = 60.0, crashes: Crashes | None = None) -> None:
        self._clock = clock
        self._crashes = crashes or Crashes()
        self.lease_seconds = lease_seconds
        self._records: dict[MessageId, Record] = {}
        self._lines: dict[QueueName, Line] = {}
        self._keys: dict[Key, MessageId] = {}
        self._places = count(1)
        self._wakeups = Wakeups()
        self._paused: set[QueueName] = set()

    async def run(self) -> None:
        """Nothing to do in the background: publishing wakes directly. Returns only by cancellation."""
        await asyncio.Event().wait()

    async def publish(
        self, messages: Sequence[Message], *, connection: Connection | None = None, notify: bool = True
    ) -> list[Published]:
        """Accept ``messages``; each is copied through the wire format, as a real store would."""
        if connection is not None:
            raise ConfigurationError("a memory broker cannot publish inside a transaction")
        copies = [decode(encode(each), each.queue) for each in messages]
        published = [self._publish(each) for each in copies]
        if notify:
            for queue in {each.queue for each in messages}:
                self._wakeups.wake(queue)
        return published

    def _publish(self, message: Message) -> Published:
        if message.id in self._records:
            return Published(id=message.id)
        now = self._clock.monotonic()
        record = Record(
            message=message,
            state=JobState.SCHEDULED,
            place=next(self._places),
            run_at=now + message.delay_seconds,
            enqueued_at=self._clock.now(),
            expires_at=None if message.expires_seconds is None else now + message.expires_seconds,
        )
        key = record.key
        if key is not None:
            holder = self._records.get(self._keys[key]) if key in self._keys else None
            if holder is not None:
                if holder.state is JobState.RUNNING and message.while_running == "rerun":
                    holder.rerun = True
                return Published(id=holder.message.id, duplicate=True)
            self._keys[key] = message.id
        self._records[message.id] = record
        (self._delay if message.delay_seconds > 0 else self._line_up)(record)
        return Published(id=message.id)

    async def claim(self, queue: QueueName, owner: ProcessId, limit: int) -> list[Delivery]:
        """Take up to ``limit`` messages in the order of lane, time and place."""
        if queue in self._paused:
            return []
        self._promote(queue)
        now = self._clock.monotonic()
        line = self._lines.get(queue, Line())
        busy = {
            (each.message.tenant, each.message.resource)
            for each in self._running()
            if each.message.resource is not None
        }
        taken: list[Delivery] = []
        passed_over: list[tuple[int, float, int, MessageId]] = []
        while line.pending and len(taken) < limit:
            entry = heapq.heappop(line.pending)
            record = self._records.get(entry[3])
            if record is None or record.state is not JobState.PENDING or record.place != entry[2]:
                continue
            resource = record.message.resource
            if record.expires_at is not None and record.expires_at <= now:
                self._fail_expired(record)
            elif resource is not None and (record.message.tenant, resource) in busy:
                passed_over.append(entry)
            else:
                if resource is not None:
                    busy.add((record.message.tenant, resource))
                taken.append(self._take(record, owner, now))
        for entry in passed_over:
            heapq.heappush(line.pending, entry)
        return taken

    def _take(self, record: Record, owner: ProcessId, now: float) -> Delivery:
        self._move(record, JobState.RUNNING)
        record.fence += 1
        record.attempt += 1
        record.owner = owner
        record.lease_until = now + self.lease_seconds
        record.started = False
        record.started_at = None
        return delivery_of(record)

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return on a publish, or when the (real) time is over."""
        await self._wakeups.wait(queue, timeout_seconds)

    async def renew(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Extend the leases; returns the lost ones."""
        lost: list[Delivery] = []
        for each in deliveries:
            record = self._held(each)
            if record is None:
                lost.append(each)
                continue
            record.lease_until = self._clock.monotonic() + self.lease_seconds
        return lost

    async def mark_started(self, deliveries: Sequence[Delivery]) -> None:
        """Note that their handlers were entered."""
        for each in deliveries:
            record = self._held(each)
            if record is not None and not record.started:
                record.started = True
                record.started_at = self._clock.now()

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Apply the outcomes whose fence still holds."""
        return [self._settle(each) for each in settlements]

    def _settle(self, settlement: Settlement) -> Verdict:
        record = self._held(settlement.delivery)
        if record is None:
            return Verdict.STALE
        outcome = settlement.outcome
        crashed = isinstance(outcome, Retrying) and outcome.crashed
        if crashed:
            record.child_crashes += 1
        after, error = decide(record, outcome, self._crashes.child_limit)
        rerun = record.rerun and after is JobState.PENDING and not isinstance(outcome, Released)
        self._release(record, after)
        record.redelivered = False
        record.error = error
        if rerun:
            record.attempt = record.child_crashes = record.hive_crashes = 0
            record.expires_at = None
        elif (crashed or isinstance(outcome, Released)) and after not in TERMINAL:
            record.attempt -= 1
        match after:
            case JobState.RETRYING:
                assert isinstance(outcome, Retrying)
                record.run_at = self._clock.monotonic() + max(0.0, outcome.delay_seconds)
                self._delay(record)
            case JobState.PENDING:
                if rerun:
                    record.run_at, record.place = self._clock.monotonic(), next(self._places)
                self._line_up(record)
            case _:
                self._end(record)
        if crashed and after is JobState.FAILED:
            return Verdict.POISONED
        return Verdict.RERUN if rerun else Verdict.ACCEPTED

    async def progress(self, delivery: Delivery, *, stage: str, done: int | None, total: int | None) -> bool:
        """Record the progress and reset the crash budgets."""
        record = self._held(delivery)
        if record is None:
            return False
        record.stage, record.done, record.total = stage, done, total
        record.child_crashes = record.hive_crashes = 0
        return True

    async def cancel_requested(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those whose flag is set."""
        return [
            each
            for each in deliveries
            if (record := self._held(each)) is not None and record.cancel_requested
        ]

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

    async def sweep(self, queues: Sequence[QueueName], *, expire_leases: bool = True) -> Swept:
        """Promote what is due, fail what expired; with ``expire_leases`` bring back what was abandoned."""
        now = self._clock.monotonic()
        wanted = set(queues)
        due = sum(self._promote(each) for each in wanted)
        late = [
            each
            for each in self._records.values()
            if each.message.queue in wanted
            and each.state in WAITING
            and each.expires_at is not None
            and each.expires_at <= now
        ]
        for each in late:
            self._fail_expired(each)
        lost = [
            each
            for each in self._running()
            if expire_leases and each.message.queue in wanted and each.lease_until < now
        ]
        failed = sum(self._abandon(each) for each in lost)
        return Swept(due=due, expired=len(lost), failed=failed + len(late))

    async def owner_died(self, owner: ProcessId) -> int:
        """Bring back all that a dead process held."""
        lost = [each for each in self._running() if each.owner == owner]
        for each in lost:
            self._abandon(each)
        return len(lost)

    def _abandon(self, record: Record) -> bool:
        """Bring back one delivery; whether that used up its budget."""
        record.hive_crashes += record.started
        poisoned = record.started and record.hive_crashes >= self._crashes.hive_limit
        if poisoned:
            record.error = poison(record.hive_crashes)
            after = JobState.FAILED
        else:
            after = JobState.CANCELLED if record.cancel_requested else JobState.PENDING
        self._release(record, after)
        record.redelivered = True
        if after is JobState.PENDING:
            record.attempt -= 1
            self._line_up(record)
        else:
            self._end(record)
        return poisoned

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

    def _held(self, delivery: Delivery) -> Record | None:
        record = self._records.get(delivery.id)
        if record is None or record.state is not JobState.RUNNING:
            return None
        return record if (record.fence, record.owner) == (delivery.fence, delivery.owner) else None

    def _running(self) -> Iterator[Record]:
        return (each for each in self._records.values() if each.state is JobState.RUNNING)

    def _move(self, record: Record, after: JobState) -> None:
        assert allowed(record.state, after), (record.state, after)
        record.state = after

    def _release(self, record: Record, after: JobState) -> None:
        self._move(record, after)
        record.owner = None
        record.started = record.rerun = record.cancel_requested = False

    def _line_up(self, record: Record) -> None:
        if record.state is not JobState.PENDING:
            self._move(record, JobState.PENDING)
        message = record.message
        line = self._lines.setdefault(message.queue, Line())
        heapq.heappush(line.pending, (int(message.lane), record.run_at, record.place, message.id))
        self._wakeups.wake(message.queue)

    def _delay(self, record: Record) -> None:
        line = self._lines.setdefault(record.message.queue, Line())
        heapq.heappush(line.delayed, (record.run_at, record.place, record.message.id))

    def _promote(self, queue: QueueName) -> int:
        line = self._lines.get(queue, Line())
        now = self._clock.monotonic()
        promoted = 0
        while line.delayed and line.delayed[0][0] <= now:
            run_at, place, id = heapq.heappop(line.delayed)
            record = self._records.get(id)
            waits = record is not None and record.state in (JobState.SCHEDULED, JobState.RETRYING)
            if record is not None and waits and (record.run_at, record.place) == (run_at, place):
                self._line_up(record)
                promoted += 1
        return promoted

    def _fail_expired(self, record: Record) -> None:
        record.error = EXPIRED
        self._move(record, JobState.FAILED)
        self._end(record)

    def _end(self, record: Record) -> None:
        record.finished_at = self._clock.now()
        if record.key is not None:
            self._keys.pop(record.key, None)
        # Failed ones move to the end of the dictionary, so that it lists dead letters by age.
        del self._records[record.message.id]
        if record.state is JobState.FAILED:
            self._records[record.message.id] = record
