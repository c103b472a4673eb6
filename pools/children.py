"""The port between the runner and the child in which a ``process=True`` handler runs.

``pools.fetch`` implements it; the runner uses it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from hive.outcomes import ErrorKind


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildCall:
    """What a child is told to run. ``function``: "module:qualname"; it may name the ``Task`` itself."""

    task: str
    function: str
    id: str
    tenant: str | None
    attempt: int
    idempotency_key: str
    arguments: Mapping[str, Any]


class ChildTaskError(Exception):
    """The handler raised inside its child, described so that it can cross a process border.

    ``type_name``: the error's class. ``transient``: whether the task's retry policy retries it; judged in
    the child, where the class is known (``task.options.retry.retries(error)``). ``kind``: set when the error
    itself decides (``Permanent``, ``NeedsOperator``). ``throttled``: whether it is a ``Throttled``.
    ``summary``: the first line of its text.
    """

    def __init__(
        self,
        type_name: str,
        summary: str,
        transient: bool = False,
        retry_after_seconds: float | None = None,
        kind: ErrorKind | None = None,
        *,
        throttled: bool = False,
    ) -> None:
        super().__init__(f"{type_name}: {summary}")
        self.type_name = type_name
        self.summary = summary
        self.transient = transient
        self.retry_after_seconds = retry_after_seconds
        self.kind = kind
        self.throttled = throttled


class ChildRunner(Protocol):
    """Runs one call in a child that exits after use."""

    async def run_task(self, call: ChildCall, *, hard_seconds: float | None) -> None:
        """Run ``call`` to its end.

        Raises ``ChildTaskError`` when the handler raised, ``hive.ingest.fetching.ChildDied`` when the child
        ended in any other way (``exit="wall_clock"`` when it was killed after ``hard_seconds``). Cancelling
        the call ends the child and its process group before it returns.
        """
        ...
