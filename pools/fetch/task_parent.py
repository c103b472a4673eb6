"""``process=True`` handlers in children: hive's side of ``task_child``."""

from dataclasses import asdict
from typing import Final

from hive.events import Events
from hive.outcomes import ErrorKind
from pools.children import ChildCall, ChildTaskError
from pools.fetch.birth import Birth
from pools.fetch.custody import Bounds, custody
from pools.fetch.frames import FrameError, Json, Kind, pack
from pools.fetch.nursery import Nursery

_SUMMARY_CHARACTERS: Final = 500


async def run_in_child(nursery: Nursery, events: Events, call: ChildCall, hard_seconds: float | None) -> None:
    """Run ``call`` in a fresh child to its end: see ``pools.children.ChildRunner``.

    The child keeps hive's user and has no memory limit of its own: the handler is the operator's own code.
    Raises Transient when no child can be started now.
    """
    bounds = Bounds(memory_bytes=None, stall_seconds=None, wall_seconds=hard_seconds)
    first = pack(Kind.CALL, asdict(call))
    async with custody(nursery, Birth(role="task"), first, bounds, events) as held:
        kind, payload = await held.next()
        if kind is Kind.RETURNED:
            held.finished = True
            return
        try:
            if kind is not Kind.RAISED:
                raise FrameError(f"a task's child may not send a {kind.name} frame")
            raised = _error(payload)
        except (KeyError, TypeError, ValueError, FrameError) as error:
            await held.refuse(FrameError(str(error)))
        held.finished = True
        raise raised


def _error(payload: Json) -> ChildTaskError:
    wait = payload["retry_after_seconds"]
    return ChildTaskError(
        str(payload["type_name"]),
        str(payload["summary"])[:_SUMMARY_CHARACTERS],
        transient=bool(payload["transient"]),
        retry_after_seconds=None if wait is None else float(wait),
        kind=None if payload["kind"] is None else ErrorKind(payload["kind"]),
        throttled=bool(payload["throttled"]),
    )
