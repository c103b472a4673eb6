"""Drives a coroutine step by step, and does something at its n-th await."""

from collections.abc import Callable, Coroutine, Generator
from typing import Any


class Stepping:
    """Awaits ``inner``; as it gives up the loop for the ``at``-th time (from 0), ``action`` is called.

    ``steps``: how often it has given up the loop so far; ``waited_for``: what for, the last time.
    """

    def __init__(self, inner: Coroutine[Any, Any, None], at: int, action: Callable[[], None]) -> None:
        self._inner = inner
        self._at = at
        self._action = action
        self.steps = 0
        self.waited_for: Any = None

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[], Any] = lambda: self._inner.send(None)  # noqa: E731
        while True:
            try:
                self.waited_for = step()
            except StopIteration:
                return
            if self.steps == self._at:
                self._action()
            self.steps += 1
            try:
                yield self.waited_for
            except BaseException as error:  # noqa: BLE001 - handed on to where it belongs
                thrown = error
                step = lambda: self._inner.throw(thrown)  # noqa: E731
            else:
                step = lambda: self._inner.send(None)  # noqa: E731
