"""A broker in this process's memory, for tests. It keeps the same contract as the others.

Time is the given clock's: a test moves leases and delays by moving the clock.
"""

import asyncio
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy

from hive.broker.memory_lines import Choice, Entry, Line
from hive.broker.memory_operations import MemoryOperations
from hive.broker.memory_records import EXPIRED, WAITING, Record, decide, delivery_of, poison
from hive.broker.port import BrokerKind, Delivery, Message, Published, Settlement, Swept, Verdict
from hive.broker.wire import decode, encode
from hive.clock import Clock
from hive.errors import ConfigurationError, QueueFull
from hive.ids import ProcessId, QueueName, TenantId
from hive.outcomes import Released, Retrying
from hive.settings import Crashes
from hive.states import TERMINAL, JobState
from hive.store.connection import Connection


class Memory(MemoryOperations):
    """The broker contract in memory; see ``hive.broker.port`` for what each method promises.

    ``lease_seconds`` is measured by ``clock``. Transactions are not supported: ``connection`` is refused.
    ``max_depth``: how many messages may wait in a queue. ``weights``: tenants' parts of what is shared, 1
    unless named; looked up at each claim.
    """

    kind = BrokerKind.MEMORY

    def __init__(
        self,
        clock: Clock,
        *,
        lease_seconds: float = 60.0,
        crashes: Crashes | None = None,
        max_depth: Mapping[QueueName, int] | None = None,
        weights: Mapping[TenantId, int] | None = None,
    ) -> None:
        super().__init__(clock)
        self._crashes = crashes or Crashes()
        self._max_depth = dict(max_depth or {})
        self._weights = {} if weights is None else weights
        self.lease_seconds = lease_seconds

    def beside(self, *, max_depth: Mapping[QueueName, int]) -> "Memory":
        """The same messages as another process sees them that has these limits."""
        other = copy(self)
        other._max_depth = dict(max_depth)
        return other

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
        for queue, count in Counter(each.queue for each in messages).items():
            most = self._max_depth.get(queue)
            if most is not None and self._waiting(queue) + count > most:
                raise QueueFull(f"queue {queue} holds its most, {most} messages")
        return [self._publish(each, notify) for each in copies]

    def _publish(self, message: Message, notify: bool) -> Published:
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
        if message.delay_seconds > 0:
            self._delay(record)
        else:
            self._line_up(record, notify=notify)
        return Published(id=message.id)

    async def claim(self, queue: QueueName, owner: ProcessId, limit: int) -> list[Delivery]:
        """Take up to ``limit`` messages: lanes by turns, tenants by what they have in flight."""
        if queue in self._paused or limit <= 0:
            return []
        self._promote(queue)
        now = self._clock.monotonic()
        loads: Counter[TenantId | None] = Counter()
        busy: set[tuple[TenantId | None, str]] = set()
        for each in self._running():
            message = each.message
            if message.queue == queue:
                loads[message.tenant] += message.cost
            if message.resource is not None:
                busy.add((message.tenant, message.resource))

        def look(entry: Entry) -> Record | None:
            record = self._records.get(entry[2])
            if record is None or record.state is not JobState.PENDING or record.place != entry[1]:
                return None
            if record.expires_at is not None and record.expires_at <= now:
                self._fail_expired(record)
                return None
            return record

        def is_free(record: Record) -> bool:
            resource = record.message.resource
            return resource is None or (record.message.tenant, resource) not in busy

        taken: list[Delivery] = []

        def take(record: Record) -> None:
            if record.message.resource is not None:
                busy.add((record.message.tenant, record.message.resource))
            taken.append(self._take(record, owner, now))

        line = self._lines.setdefault(queue, Line())
        Choice(line, look=look, is_free=is_free, loads=loads, weights=self._weights).of(limit, take)
        return sorted(taken, key=lambda each: each.lane)

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
        spared = isinstance(outcome, Released) or (isinstance(outcome, Retrying) and not outcome.charged)
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
        elif (crashed or spared) and after not in TERMINAL:
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

    def _held(self, delivery: Delivery) -> Record | None:
        record = self._records.get(delivery.id)
        if record is None or record.state is not JobState.RUNNING:
            return None
        return record if (record.fence, record.owner) == (delivery.fence, delivery.owner) else None

    def _release(self, record: Record, after: JobState) -> None:
        self._move(record, after)
        record.owner = None
        record.started = record.rerun = record.cancel_requested = False

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
