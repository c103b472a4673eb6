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
    return _with_place(function, with_tenant=False)


def placed_in_tenant(function: Command) -> Command:
    """As ``placed``, and ``--tenant``."""
    return _with_place(function, with_tenant=True)


def _with_place(function: Command, *, with_tenant: bool) -> Command:
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

    options = [
        click.option(
            "--state", metavar="DIR", help="State folder of the hive that is meant. [env: HIVE_STATE_DIR]"
        ),
        click.option("--config", metavar="FILE", help="Its configuration file. [env: HIVE_CONFIG]"),
        click.option(
            "--port",
            type=click.IntRange(0, 65535),
            metavar="N",
            help="Its port, if not the one it wrote down.",
        ),
    ]
    if with_tenant:
        options.append(
            click.option("--tenant", metavar="T", help="The tenant; may be left out while there is only one.")
        )
    for option in reversed(options):
        command = option(command)
    return command
