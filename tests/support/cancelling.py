"""Cancels a call at each await of it, and counts the cancellations that were lost."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from stepping import Stepping

Call = Callable[[], Awaitable[Any]]


@dataclass
class Tally:
    """How many calls were cancelled, and at which of their awaits a call went on regardless."""

    cancelled: int = 0
    lost: list[str] = field(default_factory=list[str])


async def cancel_everywhere(name: str, call: Call, tally: Tally, *, after: Call | None = None) -> None:
    """Run ``call`` in a task of its own again and again, each time with one plain ``task.cancel()``.

    It comes at the first await, the second and so on: once while the call waits there, and once in the very
    turn of the loop in which what it waited for has come. ``after`` runs between the calls, uncancelled.
    """
    for at in count():
        for ending in (False, True):
            if not await _cancelled_at(call, at, ending, f"{name}, await {at}, ending: {ending}", tally):
                return
            if after is not None:
                await after()


async def _cancelled_at(call: Call, at: int, ending: bool, moment: str, tally: Tally) -> bool:
    """False when the call was over before its ``at``-th await."""
    asked = False

    def ask() -> None:
        nonlocal asked
        asked = True
        if ending and asyncio.isfuture(stepping.waited_for):
            stepping.waited_for.add_done_callback(lambda _: task.cancel())
        else:
            asyncio.get_running_loop().call_soon(task.cancel)

    async def called() -> None:
        await call()

    async def stepped() -> None:
        await stepping

    stepping = Stepping(called(), at, ask)
    task = asyncio.ensure_future(stepped())
    (error,) = await asyncio.gather(task, return_exceptions=True)
    if not asked:
        if isinstance(error, BaseException):
            raise error
        return False
    tally.cancelled += 1
    if not task.cancelled():
        tally.lost.append(f"{moment}: {error!r}")
    return True
