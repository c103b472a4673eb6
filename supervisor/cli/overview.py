"""What a running hive is busy with: `hive queues`, `hive pools`, `hive services`, `hive drain`."""

import click

from supervisor.cli.api import Api
from supervisor.cli.options import as_json, placed
from supervisor.cli.output import print_json, print_rows, say
from supervisor.cli.place import Place


@click.command()
@as_json
@placed
def queues(place: Place, as_json: bool) -> None:
    """Show every queue: who carries it, which pool serves it, what waits and for how long.

    \b
    Example:
      hive queues
    """
    columns = ("queue", "broker", "pool", "slots", "waiting", "delayed", "running", "oldest_seconds")
    print_rows(Api(place).items("/v1/queues"), columns, as_json=as_json, empty="no queues")


@click.command()
@as_json
@placed
def pools(place: Place, as_json: bool) -> None:
    """Show every pool: its slots, how many are busy, and with what.

    \b
    Example:
      hive pools --json
    """
    rows = Api(place).items("/v1/pools")
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["queues"] = ", ".join(row["queues"])
    print_rows(rows, ("pool", "slots", "busy", "lost", "ready", "queues"), as_json=False, empty="no pools")


@click.command()
@as_json
@placed
def services(place: Place, as_json: bool) -> None:
    """Show the supervised services: state, restarts, and why the last one failed.

    \b
    Example:
      hive services
    """
    rows = Api(place).items("/v1/services")
    columns = ("service", "state", "restarts", "since_seconds", "pulse_age_seconds", "cause")
    print_rows(rows, columns, as_json=as_json, empty="no services")


@click.command()
@placed
def drain(place: Place) -> None:
    """Ask the running hive to finish what it can, hand back the rest, and end: as SIGTERM does.

    \b
    Example:
      hive drain
    """
    Api(place).post("/v1/drain")
    say("draining; hive ends when its work is finished or handed back")
