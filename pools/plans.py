"""Plans: what the runner needs to know of a task, looked up once per task and not once per message."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hive.tasks import Registry, Task, TaskOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A task, ready to be run. ``path``: "module:qualname", as a child finds it."""

    task: Task[Any]
    function: Callable[..., Any]
    options: TaskOptions
    path: str


class Plans:
    """The plans of one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._known: dict[str, Plan] = {}

    def of(self, name: str) -> Plan:
        """The plan of the task of that name; raises UnknownTask."""
        plan = self._known.get(name)
        if plan is None:
            plan = self._known[name] = plan_of(self._registry.get(name))
        return plan


def plan_of(task: Task[Any]) -> Plan:
    """Look ``task`` up from its function."""
    function = task.function
    return Plan(
        task=task,
        function=function,
        options=task.options,
        path=f"{function.__module__}:{function.__qualname__}",
    )
