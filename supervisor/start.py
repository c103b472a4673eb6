"""`hive run` without the libraries of the command line, which a process that lives for months need not hold.

click and rich take 9 MB and a tenth of a second of the start. A plain command line is read here; whatever is
not plain (help, a mistake, an abbreviation) is left to click, which says it better.
"""

import ctypes
import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from supervisor.cli.failure import CommandFailed, hive_errors
from supervisor.cli.place import Place, find
from supervisor.cli.plain_text import clean

_VALUES: Final = ("--state", "--config", "--port")
_LARGEST_PORT: Final = 65535
_M_ARENA_MAX: Final = -8  # mallopt(3)
_ARENAS: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Plain:
    """The options of `hive run`."""

    state: str | None = None
    config: str | None = None
    port: int | None = None
    demo: bool = False


def plain(arguments: Sequence[str]) -> Plain | None:
    """The options, or None where click has to look at them."""
    values: dict[str, str] = {}
    demo = False
    rest = iter(arguments)
    for argument in rest:
        name, equals, value = argument.partition("=")
        if argument == "--demo":
            demo = True
        elif name in _VALUES:
            if not equals:
                value = next(rest, "")
            if not value or value.startswith("-"):
                return None
            values[name] = value
        else:
            return None
    port = values.get("--port")
    if port is not None and not (port.isascii() and port.isdigit() and int(port) <= _LARGEST_PORT):
        return None
    return Plain(
        state=values.get("--state"),
        config=values.get("--config"),
        port=None if port is None else int(port),
        demo=demo,
    )


def run(options: Plain) -> int:
    """Run hive in the foreground; returns the exit code, having said on standard error what went wrong."""
    try:
        return serve(
            find(state=options.state, config=options.config, port=options.port, tenant=None),
            demo=options.demo,
        )
    except CommandFailed as failure:
        print(clean(failure.line()), file=sys.stderr)  # noqa: T201
        return failure.code
    except KeyboardInterrupt:  # before hive had taken over the signals
        return 130


def serve(place: Place, *, demo: bool) -> int:
    """Run the hive of ``place`` until it is told to stop. Raises CommandFailed when it cannot start."""
    import asyncio

    _limit_arenas()
    # A start makes 140,000 objects that stay: to look for garbage among them 200 times is 6 % of it. The
    # lifecycle switches this on again when everything stands.
    gc.disable()
    try:
        from hive.config_file import load
        from supervisor.lifecycle import run as run_to_the_end

        with hive_errors():
            settings = load(place.config, overrides=place.overrides())
            return asyncio.run(run_to_the_end(settings, demo=demo))
    finally:
        gc.enable()


def _limit_arenas() -> None:
    """Have few heaps in the C library: by default each thread that packs a batch keeps one of its own."""
    with suppress(AttributeError):  # glibc's alone
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
