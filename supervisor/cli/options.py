"""The options that commands share."""

import functools
from collections.abc import Callable
from typing import Any

import click

from supervisor.cli.place import find

Command = Callable[..., Any]

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs instead of a table.")


class ListsByDefault(click.Group):
    """A group whose bare name, perhaps with options, is its `list`: `hive jobs --status failed`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ("--help", "-h")):
            args = ["list", *args]
        return super().parse_args(ctx, args)


def placed(function: Command) -> Command:
    """Add ``--state``, ``--config`` and ``--port``; the command gets a ``Place`` as its first argument."""
    return _with(function, _STATE, _CONFIG, _PORT)


def placed_in_tenant(function: Command) -> Command:
    """As ``placed``, and ``--tenant``."""
    return _with(function, _STATE, _CONFIG, _PORT, _TENANT)


def placed_to_run(function: Command) -> Command:
    """As ``placed``, in the words of a hive that is about to be started."""
    return _with(function, _OWN_STATE, _OWN_CONFIG, _OWN_PORT)


_PORTS = click.IntRange(0, 65535)
_STATE = click.option(
    "--state", metavar="DIR", help="State folder of the hive that is meant. [env: HIVE_STATE_DIR]"
)
_CONFIG = click.option("--config", metavar="FILE", help="Its configuration file. [env: HIVE_CONFIG]")
_PORT = click.option("--port", type=_PORTS, metavar="N", help="Its port, if not the one it wrote down.")
_TENANT = click.option("--tenant", metavar="T", help="The tenant; may be left out while there is only one.")
_OWN_STATE = click.option(
    "--state", metavar="DIR", help="State folder, made if need be. [env: HIVE_STATE_DIR; default: .hive]"
)
_OWN_CONFIG = click.option(
    "--config",
    metavar="FILE",
    help="Configuration file. [env: HIVE_CONFIG; default: ./config.toml if it exists]",
)
_OWN_PORT = click.option(
    "--port",
    type=_PORTS,
    metavar="N",
    help="HTTP port; 0 takes a free one. [env: HIVE_HTTP__PORT; default: 8420]",
)


def _with(function: Command, *options: Callable[[Command], Command]) -> Command:
    @functools.wraps(function)
    def command(
        *args: Any,
        state: str | None,
        config: str | None,
        port: int | None,
        tenant: str | None = None,
        **rest: Any,
    ) -> Any:
        return function(find(state=state, config=config, port=port, tenant=tenant), *args, **rest)

    decorated: Command = command
    for option in reversed(options):
        decorated = option(decorated)
    return decorated
