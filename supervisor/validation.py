"""Whether settings and tasks fit together. `hive check` prints what does not; `hive run` refuses it.

A queue without a consumer is how work waits in silence for ever: it must not survive a start.
"""

import importlib
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from hive.errors import ConfigurationError
from hive.settings import Settings
from hive.tasks import Task

BUILT_IN = ("hive.ingest.tasks", "supervisor.ticks")
"""Modules that register hive's own tasks."""

TRANSACTIONAL = ("fetch_connector", "process_batch")
"""Tasks whose job commits together with their effects, which only the ledger can do."""


def register_tasks(settings: Settings) -> None:
    """Import hive's own tasks and those of ``process.modules``; ConfigurationError names the module."""
    for name in BUILT_IN:
        importlib.import_module(name)
    if "" not in sys.path:  # a console script, unlike `python -m`, does not look into the working folder
        sys.path.append("")
    for name in settings.process.modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # somebody else's module may fail in any way
            raise ConfigurationError(
                f"process.modules: {name!r} cannot be imported: {type(error).__name__}: {error}",
                remedy="is it installed, or in the working folder?",
            ) from error


def problems(
    settings: Settings,
    tasks: Iterable[Task[Any]],
    *,
    needs_ledger: Collection[str] = TRANSACTIONAL,
    built_in: bool = True,
) -> tuple[str, ...]:
    """Everything that does not fit, one sentence each; empty when all is well.

    ``needs_ledger``: tasks whose effects are transactional: their queue must be carried by the ledger.
    ``built_in``: whether ``tasks`` are supposed to hold every scheduled task.
    """
    pools_of = {
        queue: name for name, pool in settings.pools.items() for queue in (*pool.ledger, *pool.stream)
    }
    streams = (
        {queue for pool in settings.pools.values() for queue in pool.stream}
        if settings.redis.enabled
        else set()
    )
    known = {task.name: task for task in tasks}
    found: list[str] = []
    queues_with_tasks: dict[str, list[str]] = {}
    for name, task in sorted(known.items()):
        queue = task.options.queue
        queues_with_tasks.setdefault(queue, []).append(name)
        if queue not in pools_of:
            found.append(
                f"task {name}: no pool has its queue {queue!r} (add it to a pool's ledger or stream list)"
            )
        elif name in needs_ledger and queue in streams:
            found.append(
                f"task {name}: needs a ledger queue, but {queue!r} stands in pools.{pools_of[queue]}.stream"
            )
    found += _idle_pools(settings, queues_with_tasks)
    if built_in:
        found += [
            f"schedules.{name}: no task of that name is registered (0 switches a schedule off)"
            for name, seconds in settings.schedules.items()
            if seconds > 0 and name not in known
        ]
    return tuple(found)


def verify(
    settings: Settings, tasks: Iterable[Task[Any]], *, needs_ledger: Collection[str] = TRANSACTIONAL
) -> None:
    """Raise ConfigurationError listing every problem, if there is one."""
    found = problems(settings, tasks, needs_ledger=needs_ledger)
    if found:
        raise ConfigurationError("the configuration does not fit the tasks:\n  " + "\n  ".join(found))


def _idle_pools(settings: Settings, tasks_of: Mapping[str, list[str]]) -> list[str]:
    return [
        f"pools.{name}.slots is 0, but its queue {queue!r} has tasks ({', '.join(tasks_of[queue])})"
        for name, pool in settings.pools.items()
        if pool.slots == 0
        for queue in (*pool.ledger, *pool.stream)
        if queue in tasks_of
    ]
