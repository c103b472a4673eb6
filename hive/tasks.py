"""The registry behind ``@task``: which functions hive runs, on which queue, under which policy."""

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

from hive.backoff import Retry
from hive.broker.port import Lane
from hive.errors import ConfigurationError, InvalidInput, UnknownTask
from hive.ids import MessageId, QueueName, TaskName, TenantId

if TYPE_CHECKING:
    from hive.client import Client
    from hive.context import Context
    from hive.store.connection import Connection

P = ParamSpec("P")
R = TypeVar("R")


class Execution(StrEnum):
    """Where a handler runs: on the loop, in one of the pool's threads, or in a child that exits after use."""

    LOOP = "loop"
    THREAD = "thread"
    PROCESS = "process"


_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

Scope = Literal["tenant", "system"]
OnLeaseDoubt = Literal["continue", "cancel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How a task is run. ``soft_seconds`` cancels the handler, ``hard_seconds`` kills what does not listen.

    ``on_lease_doubt``: what happens to a running handler when its lease could not be renewed in time while
    the store is away: ``cancel`` it (the safe default), or let it ``continue`` since all its effects go
    through ``context.transaction()`` and are refused if stale. ``work_gated``: as a periodic task of tenants
    it passes over those that have no work (``hive.tenant.working``), but for a round every 20 minutes.
    """

    name: TaskName
    queue: QueueName
    scope: Scope
    execution: Execution
    retry: Retry
    soft_seconds: float | None
    hard_seconds: float | None
    lane: Lane
    on_lease_doubt: OnLeaseDoubt
    work_gated: bool = False


class Task(Generic[P]):
    """A registered function: ``send`` enqueues it, calling the task itself runs the function directly."""

    def __init__(self, function: Callable[..., Any], options: TaskOptions) -> None:
        self.function = function
        self.options = options
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self._signature = inspect.Signature(parameters)
        # What fits by name alone, which `check` need not bind to know; nothing of a function with `*` or `/`.
        named = all(each.kind in _BY_NAME for each in parameters)
        self._names = frozenset(each.name for each in parameters) if named else frozenset[str]()
        self._required = frozenset(each.name for each in parameters if each.default is each.empty)
        self.__doc__ = function.__doc__
        self.__name__ = options.name

    @property
    def name(self) -> TaskName:
        return self.options.name

    def __call__(self, context: "Context", *args: P.args, **kwargs: P.kwargs) -> Any:
        return self.function(context, *args, **kwargs)

    def arguments(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """The call's arguments by name; raises InvalidInput when they do not fit the function."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidInput(f"arguments of {self.name}", str(error)) from error
        return dict(bound.arguments)

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise InvalidInput unless ``arguments`` fit the function by name."""
        if self._required <= arguments.keys() <= self._names:
            return
        self.arguments(**arguments)  # pyright: ignore[reportCallIssue]

    async def send(self, client: "Client", *args: P.args, **kwargs: P.kwargs) -> MessageId:
        """Enqueue this task for the current tenant; returns the message's id."""
        return await client.enqueue(self, self.arguments(*args, **kwargs))

    def using(
        self,
        client: "Client",
        *,
        tenant: TenantId | None = None,
        connection: "Connection | None" = None,
        key: str | None = None,
        while_running: Literal["rerun", "drop"] = "rerun",
        lane: Lane | None = None,
        delay_seconds: float = 0.0,
        expires_seconds: float | None = None,
        parent: MessageId | None = None,
    ) -> "Sender[P]":
        """A sender with options; ``connection`` enqueues inside the caller's own transaction."""
        return Sender(
            self,
            client,
            {
                "tenant": tenant,
                "connection": connection,
                "key": key,
                "while_running": while_running,
                "lane": lane,
                "delay_seconds": delay_seconds,
                "expires_seconds": expires_seconds,
                "parent": parent,
            },
        )


class Sender(Generic[P]):
    """A task with enqueue options bound: ``await task.using(client, key="k").send(…)``."""

    def __init__(self, task: Task[P], client: "Client", options: dict[str, Any]) -> None:
        self._task = task
        self._client = client
        self._options = options

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> MessageId:
        """Enqueue; returns the message's id (the first one's when ``key`` found it waiting already)."""
        return await self._client.enqueue(self._task, self._task.arguments(*args, **kwargs), **self._options)


class Registry:
    """The tasks one process knows, by name."""

    def __init__(self) -> None:
        self._tasks: dict[TaskName, Task[...]] = {}
        self._lock = threading.Lock()

    def add(self, task: Task[...]) -> None:
        """Register ``task``; a second function under the same name is refused."""
        with self._lock:
            known = self._tasks.get(task.name)
            if known is not None and known.function is not task.function:
                raise ConfigurationError(
                    f"two tasks are named {task.name!r}: "
                    f"{_where(known.function)} and {_where(task.function)}",
                    remedy="give one of them another name",
                )
            self._tasks[task.name] = task

    def get(self, name: str) -> Task[...]:
        """The task of that name; raises UnknownTask."""
        try:
            return self._tasks[TaskName(name)]
        except KeyError:
            raise UnknownTask(
                "task", f"no task is named {name!r}", remedy="`hive check` lists the registered tasks"
            ) from None

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    def __iter__(self) -> Iterator[Task[...]]:
        return iter(self._tasks.values())


registry = Registry()
"""The process-wide registry that ``@task`` adds to."""


@overload
def task(
    function: Callable[Concatenate["Context", P], Any],
    /,
) -> Task[P]: ...
@overload
def task(
    *,
    queue: str = "scheduled_tasks",
    name: str | None = None,
    scope: Scope = "tenant",
    process: bool = False,
    retry: Retry | None = None,
    soft_seconds: float | None = None,
    hard_seconds: float | None = None,
    lane: Lane = Lane.NORMAL,
    on_lease_doubt: OnLeaseDoubt = "cancel",
    work_gated: bool = False,
    into: Registry | None = None,
) -> Callable[[Callable[Concatenate["Context", P], Any]], Task[P]]: ...
def task(
    function: Callable[..., Any] | None = None,
    /,
    *,
    queue: str = "scheduled_tasks",
    name: str | None = None,
    scope: Scope = "tenant",
    process: bool = False,
    retry: Retry | None = None,
    soft_seconds: float | None = None,
    hard_seconds: float | None = None,
    lane: Lane = Lane.NORMAL,
    on_lease_doubt: OnLeaseDoubt = "cancel",
    work_gated: bool = False,
    into: Registry | None = None,
) -> Any:
    """Register a function as a task. Its first parameter is the ``Context``; the others are its arguments.

    An ``async def`` runs on the event loop, a plain ``def`` in one of the pool's threads, and with
    ``process=True`` in a child process that exits after use (the function must then be importable by name).
    ``name`` defaults to the function's name. ``scope="system"`` is for work that belongs to no tenant.
    """

    def register(function: Callable[..., Any]) -> Task[...]:
        is_coroutine = inspect.iscoroutinefunction(function)
        if process and is_coroutine:
            raise ConfigurationError(f"task {function.__name__}: process=True needs a plain `def`")
        if not list(inspect.signature(function).parameters):
            raise ConfigurationError(f"task {function.__name__}: the first parameter must be the context")
        if soft_seconds is not None and hard_seconds is not None and hard_seconds < soft_seconds:
            raise ConfigurationError(f"task {function.__name__}: hard_seconds is below soft_seconds")
        execution = Execution.PROCESS if process else Execution.LOOP if is_coroutine else Execution.THREAD
        made: Task[...] = Task(
            function,
            TaskOptions(
                name=TaskName(name or function.__name__),
                queue=QueueName(queue),
                scope=scope,
                execution=execution,
                retry=retry or Retry(),
                soft_seconds=soft_seconds,
                hard_seconds=hard_seconds,
                lane=lane,
                on_lease_doubt=on_lease_doubt,
                work_gated=work_gated,
            ),
        )
        (into if into is not None else registry).add(made)
        return made

    return register(function) if function is not None else register


def _where(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
