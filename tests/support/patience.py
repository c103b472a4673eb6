"""Waiting for what a test expects, with a deadline: in a loop that yields, never a sleep to "wait a bit"."""

from collections.abc import Callable

import anyio


async def until(
    condition: Callable[[], object], *, seconds: float = 20.0, what: str = "the condition"
) -> None:
    """Return once ``condition`` is true; fails naming ``what`` after ``seconds``."""
    with anyio.move_on_after(seconds):
        while not condition():
            await anyio.sleep(0.002)
        return
    raise AssertionError(f"not within {seconds:g} s: {what}")
