"""hive's loggers: structlog's, which is imported when the first line is logged.

structlog imports rich wherever it finds it, for tracebacks that hive never prints: together 90 ms of a start
and 9 MB. An application that imports hive's client, or a script with a worker, may never log a line. (Hiding
rich from structlog would take it from an application that wants it.)
"""

from collections.abc import Callable
from threading import RLock
from typing import Any, Final

_set_ups: Final[list[Callable[[], None]]] = []
_setting_up: Final = RLock()


def before_first_line(set_up: Callable[[], None]) -> None:
    """Have ``set_up`` called as structlog is loaded, to configure it."""
    _set_ups[:] = [set_up]


def set_up() -> None:
    """Do what ``before_first_line`` asked for, once; no other thread logs before that is done."""
    with _setting_up:
        while _set_ups:
            _set_ups.pop()()


def get_logger(name: str) -> Any:
    """structlog's logger of that name, or what will be it."""
    return _Unloaded(name)


class _Unloaded:
    """Finds its methods at structlog's logger."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        if method == "_logger":
            set_up()
            import structlog

            self._logger = structlog.get_logger(self._name)
            return self._logger
        return getattr(self._logger, method)
