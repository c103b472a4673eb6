"""`hive jobs` and `hive enqueue`."""

import json

import click

from supervisor.cli.api import Api
from supervisor.cli.failure import CommandFailed
from supervisor.cli.offline import api_or_database
from supervisor.cli.options import ListsByDefault, as_json, placed_in_tenant
from supervisor.cli.output import print_fields, print_json, print_rows, say, shown
from supervisor.cli.place import Place

STATES = ("scheduled", "pending", "running", "retrying", "completed", "failed", "cancelled")
COLUMNS = ("id", "task", "tenant", "state", "attempt", "progress", "error", "enqueued_at")


@click.group(cls=ListsByDefault)
def jobs() -> None:
    """List, show and cancel durable jobs. Works while hive is down, too.

    \b
    Examples:
      hive jobs --status running
      hive jobs --queue document_processing --limit 10 --json
      hive jobs show 0199c2f0-7c2e-7000-8000-000000000000
    """


@jobs.command("list")
@click.option("--queue", help="Only those of this queue.")
@click.option("--status", type=click.Choice(STATES), help="Only those in this state.")
@click.option("--task", help="Only those of this task.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Rows at the most."
)
@as_json
@placed_in_tenant
def list_jobs(
    place: Place, *, queue: str | None, status: str | None, task: str | None, limit: int, as_json: bool
) -> None:
    """List jobs, newest first (`hive jobs` alone does the same).

    \b
    Example:
      hive jobs list --status failed
    """
    with api_or_database(place) as api:
        rows = api.items("/v1/jobs", queue=queue, state=status, task=task, limit=limit)
    if not as_json:
        for row in rows:
            row["error"] = (row["error"] or {}).get("summary")
            counts = None if row["done"] is None else f"{row['done']}/{shown(row['total'])}"
            row["progress"] = " ".join(each for each in (row["stage"], counts) if each) or None
    print_rows(rows, COLUMNS, as_json=as_json, empty="no jobs")


@jobs.command("show")
@click.argument("id")
@as_json
@placed_in_tenant
def show_job(place: Place, id: str, as_json: bool) -> None:
    """Show one job with its arguments, progress and error.

    \b
    Example:
      hive jobs show 0199c2f0-7c2e-7000-8000-000000000000
    """
    with api_or_database(place) as api:
        print_fields(api.get(f"/v1/jobs/{quoted(id)}"), as_json=as_json)


@jobs.command("cancel")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@as_json
@placed_in_tenant
def cancel(place: Place, ids: tuple[str, ...], as_json: bool) -> None:
    """Cancel jobs: waiting ones at once, running ones as soon as their handlers listen.

    \b
    Example:
      hive jobs cancel 0199c2f0-7c2e-7000-8000-000000000000
    """
    with api_or_database(place) as api:
        cancelled = [id for id in ids if api.post(f"/v1/jobs/{quoted(id)}/cancel")["cancelled"]]
    if as_json:
        print_json({"cancelled": cancelled})
    else:
        say(
            f"{len(cancelled)} cancelled"
            + ("" if len(cancelled) == len(ids) else "; the others had ended already")
        )


@click.command()
@click.argument("task")
@click.option(
    "--json", "arguments", default="{}", metavar="OBJECT", help="The task's arguments as a JSON object."
)
@click.option("--key", help="While a message of this key waits, a second one is not enqueued.")
@click.option("--delay-seconds", type=click.FloatRange(min=0), default=0.0, help="Run no earlier than this.")
@placed_in_tenant
def enqueue(place: Place, *, task: str, arguments: str, key: str | None, delay_seconds: float) -> None:
    """Enqueue one message for TASK and print its id.

    \b
    Example:
      hive enqueue send_digest --json '{"user": 7}' --delay-seconds 60
    """
    try:
        parsed = json.loads(arguments)
    except ValueError as error:
        raise CommandFailed(
            f"--json: {error}", remedy="give a JSON object, as in '{\"user\": 7}'", code=2
        ) from error
    if not isinstance(parsed, dict):
        raise CommandFailed("--json: not an object", remedy="give the arguments by name", code=2)
    body: dict[str, object] = {"task": task, "args": parsed, "delay_seconds": delay_seconds}
    if key is not None:
        body["key"] = key
    say(Api(place).post("/v1/enqueue", body)["id"])


def quoted(id: str) -> str:
    """``id`` as a part of a path."""
    from urllib.parse import quote

    return quote(id, safe="")
