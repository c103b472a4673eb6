"""What beat keeps time for: which task, how often, and when next."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hive.ids import QueueName
from hive.logger import get_logger
from hive.tasks import Registry, Task

log = get_logger(__name__)


class Timetable(Protocol):
    """When a schedule is due. Intervals today; cron expressions fit the same two questions."""

    def first(self, now: float, position: float) -> float:
        """When a new entry is due; ``position`` (0 to 1) is its place among those added with it."""
        ...

    def following(self, due: float, now: float) -> float:
        """The first time after ``now`` in the series that ``due`` belongs to."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Every so many seconds; the first time at once, spread over ``spread_seconds`` at the most."""

    period_seconds: float
    spread_seconds: float = 0.0

    def first(self, now: float, position: float) -> float:
        return now + position * min(self.spread_seconds, self.period_seconds)

    def following(self, due: float, now: float) -> float:
        missed = math.floor(max(0.0, now - due) / self.period_seconds)
        return due + (missed + 1) * self.period_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A registered task and how often it is told to look for work."""

    task: Task[Any]
    period_seconds: float

    @property
    def name(self) -> str:
        return self.task.name

    @property
    def per_tenant(self) -> bool:
        return self.task.options.scope == "tenant"

    @property
    def work_gated(self) -> bool:
        """Whether tenants without work are passed over, but for a full round from time to time."""
        return self.per_tenant and self.task.options.work_gated


def schedules_of(
    periods: Mapping[str, float], registry: Registry, queues: Collection[QueueName]
) -> list[Schedule]:
    """The schedules that can be kept: a period above 0, the task registered, its queue carried."""
    kept: list[Schedule] = []
    for name, seconds in periods.items():
        if seconds <= 0:
            continue
        if name not in registry:
            log.warning("beat.task_not_registered", schedule=name)
            continue
        task = registry.get(name)
        if task.options.queue not in queues:
            log.warning("beat.queue_not_carried", schedule=name, queue=task.options.queue)
            continue
        kept.append(Schedule(task=task, period_seconds=seconds))
    return kept
