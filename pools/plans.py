"""Plans: what the runner needs to know of a task, looked up once per task and not once per message."""

import inspect
from collections.abc import Callable, Mapping
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
    required: frozenset[str]
    known: frozenset[str]
    takes_any: bool

    def fits(self, arguments: Mapping[str, Any]) -> bool:
        """Whether the function can be called with ``arguments`` by name."""
        given = arguments.keys()
        return self.required <= given and (self.takes_any or given <= self.known)


class Plans:
    """The plans of one registry. ``Task.check`` builds a signature at each call; this is its cheap form."""

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
    parameters = list(inspect.signature(function).parameters.values())[1:]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return Plan(
        task=task,
        function=function,
        options=task.options,
        path=f"{function.__module__}:{function.__qualname__}",
        required=frozenset(
            one.name for one in parameters if one.default is one.empty and one.kind not in variadic
        ),
        known=frozenset(one.name for one in parameters if one.kind in by_name),
        takes_any=any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters),
    )
