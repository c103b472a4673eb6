"""`hive tenant create|list`."""

import click

from supervisor.cli.api import Api
from supervisor.cli.options import as_json, placed
from supervisor.cli.output import print_json, print_rows, say
from supervisor.cli.place import Place


@click.group()
def tenant() -> None:
    """Create and list tenants. A fresh hive has one, `public`, and needs no `--tenant` until a second."""


@tenant.command("create")
@click.argument("id")
@as_json
@placed
def create(place: Place, id: str, as_json: bool) -> None:
    """Create tenant ID (lower-case letters, digits, underscores) with a schema of its own.

    \b
    Example:
      hive tenant create acme
    """
    made = Api(place).post("/v1/tenants", {"id": id}, seconds=60)
    if as_json:
        print_json(made)
    else:
        say(f"tenant {made['id']} created")


@tenant.command("list")
@as_json
@placed
def list_tenants(place: Place, as_json: bool) -> None:
    """List the tenants.

    \b
    Example:
      hive tenant list --json
    """
    rows = Api(place).items("/v1/tenants")
    print_rows(rows, ("id", "state", "weight", "timezone", "created_at"), as_json=as_json, empty="no tenants")
