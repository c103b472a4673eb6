"""The lines of the memory broker: who goes next, by lane, tenant and time."""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hive.broker.lanes import LaneTurns
from hive.broker.memory_records import Record
from hive.broker.port import Lane
from hive.ids import MessageId, TenantId

Entry = tuple[float, int, MessageId]
"""When it is due, its place among those due at the same time, and whose entry it is."""


@dataclass(slots=True)
class Line:
    """One queue: heaps that may hold entries of messages that have moved on since."""

    pending: dict[Lane, dict[TenantId | None, list[Entry]]] = field(
        default_factory=lambda: {lane: {} for lane in Lane}
    )
    delayed: list[Entry] = field(default_factory=list[Entry])
    turns: LaneTurns = field(default_factory=LaneTurns)
    cursors: dict[Lane, str] = field(default_factory=lambda: dict.fromkeys(Lane, ""))

    def add(self, record: Record) -> None:
        """Put a message at its place."""
        message = record.message
        tenants = self.pending[message.lane]
        heapq.heappush(tenants.setdefault(message.tenant, []), (record.run_at, record.place, message.id))


class Choice:
    """One claim's choice among what waits: of the tenants the least loaded, of its messages the first.

    ``look`` gives the record an entry stands for, or None if it is none any more. ``is_free``: whether it may
    run now. ``loads``: the cost of what each tenant has in flight; goes up with what is chosen.
    """

    def __init__(
        self,
        line: Line,
        *,
        look: Callable[[Entry], Record | None],
        is_free: Callable[[Record], bool],
        loads: Counter[TenantId | None],
        weights: Mapping[TenantId, int],
    ) -> None:
        self._line = line
        self._look = look
        self._is_free = is_free
        self._loads = loads
        self._weights = weights
        self._passed_over: list[tuple[list[Entry], Entry]] = []

    def of(self, limit: int, take: Callable[[Record], None]) -> None:
        """``take`` up to ``limit``: first each lane's part, then what the others left."""
        left = limit
        for parts in (self._line.turns.parts(limit), [limit] * len(Lane)):
            for lane, part in zip(Lane, parts, strict=True):
                for _ in range(min(part, left)):
                    record = self._next(lane)
                    if record is None:
                        break
                    take(record)
                    left -= 1
        self._line.turns.served(limit - left)
        for heap, entry in self._passed_over:
            heapq.heappush(heap, entry)

    def _next(self, lane: Lane) -> Record | None:
        best: tuple[tuple[float, bool, str], list[Entry], Record] | None = None
        for tenant, heap in self._line.pending[lane].items():
            record = self._head(heap)
            if record is None:
                continue
            weight = 1 if tenant is None else self._weights.get(tenant, 1)
            name = tenant or ""
            level = (self._loads[tenant] + record.message.cost) / weight
            rank = (level, name <= self._line.cursors[lane], name)
            if best is None or rank < best[0]:
                best = (rank, heap, record)
        if best is None:
            return None
        _, heap, record = best
        heapq.heappop(heap)
        self._loads[record.message.tenant] += record.message.cost
        self._line.cursors[lane] = record.message.tenant or ""
        return record

    def _head(self, heap: list[Entry]) -> Record | None:
        while heap:
            record = self._look(heap[0])
            if record is None:
                heapq.heappop(heap)
            elif self._is_free(record):
                return record
            else:
                self._passed_over.append((heap, heapq.heappop(heap)))
        return None
