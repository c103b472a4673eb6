"""`hive dead list|show|replay|purge`."""

import click

from supervisor.cli.api import Api
from supervisor.cli.failure import CommandFailed
from supervisor.cli.jobs import quoted
from supervisor.cli.offline import api_or_database
from supervisor.cli.options import ListsByDefault, as_json, placed_in_tenant
from supervisor.cli.output import print_fields, print_json, print_rows, say
from supervisor.cli.place import Place

COLUMNS = ("id", "task", "tenant", "kind", "summary", "attempts", "died_at")


@click.group(cls=ListsByDefault)
def dead() -> None:
    """Look at what was given up, put it back in line, or delete it. Works while hive is down, too.

    \b
    Examples:
      hive dead
      hive dead replay 0199c2f0-7c2e-7000-8000-000000000000
      hive dead replay --all --queue document_processing
    """


@dead.command("list")
@click.option("--queue", help="Only those of this queue.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Rows at the most."
)
@as_json
@placed_in_tenant
def list_dead(place: Place, *, queue: str | None, limit: int, as_json: bool) -> None:
    """List dead letters, newest first (`hive dead` alone does the same).

    \b
    Example:
      hive dead list --queue connector_fetching --json
    """
    with api_or_database(place) as api:
        rows = api.items("/v1/dead", queue=queue, limit=limit)
    print_rows(rows, COLUMNS, as_json=as_json, empty="no dead letters")


@dead.command("show")
@click.argument("id")
@as_json
@placed_in_tenant
def show(place: Place, id: str, as_json: bool) -> None:
    """Show one dead letter with its arguments and its cause.

    \b
    Example:
      hive dead show 0199c2f0-7c2e-7000-8000-000000000000
    """
    with api_or_database(place) as api:
        print_fields(api.get(f"/v1/dead/{quoted(id)}"), as_json=as_json)


@dead.command("replay")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All of them, or of --queue; up to 1000 at a time.")
@click.option("--queue", help="With --all: only those of this queue.")
@as_json
@placed_in_tenant
def replay(place: Place, *, ids: tuple[str, ...], every: bool, queue: str | None, as_json: bool) -> None:
    """Put dead letters back in line with fresh budgets.

    Refused, naming the id, while another job with the same key waits or runs.

    \b
    Examples:
      hive dead replay 0199c2f0-7c2e-7000-8000-000000000000
      hive dead replay --all --queue document_processing
    """
    with api_or_database(place) as api:
        chosen = _chosen(api, ids, every, queue)
        count = api.post("/v1/dead/replay", {"ids": chosen})["replayed"] if chosen else 0
    _report({"replayed": count}, f"{count} put back in line", as_json)


@dead.command("purge")
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--all", "every", is_flag=True, help="All of them, or of --queue; up to 1000 at a time.")
@click.option("--queue", help="With --all: only those of this queue.")
@as_json
@placed_in_tenant
def purge(place: Place, *, ids: tuple[str, ...], every: bool, queue: str | None, as_json: bool) -> None:
    """Delete dead letters for good.

    \b
    Example:
      hive dead purge 0199c2f0-7c2e-7000-8000-000000000000
    """
    with api_or_database(place) as api:
        chosen = _chosen(api, ids, every, queue)
        count = api.post("/v1/dead/purge", {"ids": chosen})["purged"] if chosen else 0
    _report({"purged": count}, f"{count} deleted", as_json)


def _chosen(api: Api, ids: tuple[str, ...], every: bool, queue: str | None) -> list[str]:
    if every == bool(ids):
        raise CommandFailed("give ids, or --all", code=2)
    if not every:
        return list(ids)
    return [str(row["id"]) for row in api.items("/v1/dead", queue=queue, limit=1000)]


def _report(counts: dict[str, int], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(counts)
    else:
        say(sentence)
