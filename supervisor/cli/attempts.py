"""`hive attempts`: what the connectors have read, and watching one of them until it ends."""

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from supervisor.cli.api import Api
from supervisor.cli.failure import CommandFailed, NotAnswering, NotRunning
from supervisor.cli.options import as_json, placed_in_tenant
from supervisor.cli.output import note, print_json, print_rows, say
from supervisor.cli.place import Place

Row = dict[str, Any]
COLUMNS = (
    "id",
    "connector",
    "status",
    "documents_new",
    "documents_total",
    "batches_done",
    "batches_total",
    "started_at",
    "note",
)
ENDED = ("completed", "completed_with_errors", "failed", "cancelled", "interrupted")
POLL_SECONDS = 0.5
FIRST_ANSWER_SECONDS = 60.0


@click.command()
@click.option("--wait", type=click.IntRange(min=1), metavar="ID", help="Watch this attempt until it ends.")
@click.option(
    "--errors", type=click.IntRange(min=1), metavar="ID", help="List the documents it could not read."
)
@click.option("--connector", metavar="NAME", help="Only those of this connector.")
@click.option(
    "--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="Rows at the most."
)
@as_json
@placed_in_tenant
def attempts(
    place: Place, *, wait: int | None, errors: int | None, connector: str | None, limit: int, as_json: bool
) -> int:
    """List the runs of the connectors, newest first, or watch one until it ends.

    While it watches, hive may be stopped and started again. Exit code 0 when the attempt completed (with a
    warning on standard error if some documents could not be read), 1 when it failed or was cancelled.

    \b
    Examples:
      hive attempts
      hive attempts --connector docs --json
      hive attempts --wait 3
      hive attempts --errors 3
    """
    api = Api(place)
    if wait is not None:
        return _conclude(api, watch(api, wait), as_json)
    if errors is not None:
        rows = api.items(f"/v1/attempts/{errors}/errors", limit=1000)
        print_rows(rows, ("code", "document", "summary"), as_json=as_json, empty="no errors")
        return 0
    rows = api.items("/v1/attempts", connector=connector, limit=limit)
    if not as_json:
        for row in rows:
            row["note"] = row["error"] or (row["waiting_for"] and f"waits for {row['waiting_for']}")
    print_rows(
        rows, COLUMNS, as_json=as_json, empty="no attempts yet (`hive connector add files …` makes the first)"
    )
    return 0


def watch(api: Api, attempt: int) -> Row:
    """The attempt's row once it has ended. Shows its progress, and waits out restarts of hive."""
    if sys.stderr.isatty():
        from supervisor.cli.progress import Bar

        with Bar(attempt) as bar:
            return _until_ended(api, attempt, bar.show, bar.waiting)
    return _until_ended(api, attempt, _Lines().show, note)


def _until_ended(api: Api, attempt: int, show: Callable[[Row], None], waiting: Callable[[str], None]) -> Row:
    answered = False
    silent_since: float | None = None
    while True:
        try:
            row: Row = api.get(f"/v1/attempts/{attempt}", seconds=10)
        except (NotRunning, NotAnswering) as failure:
            if silent_since is None:
                silent_since = time.monotonic()
                waiting(f"waiting for hive to answer: {failure.message}")
            if not answered and time.monotonic() - silent_since > FIRST_ANSWER_SECONDS:
                raise
        else:
            answered, silent_since = True, None
            show(row)
            if row["status"] in ENDED:
                return row
        time.sleep(POLL_SECONDS)


class _Lines:
    """Progress where there is no terminal: a line on standard error whenever much has changed."""

    def __init__(self) -> None:
        self._said = ""
        self._status = ""
        self._said_at = 0.0

    def show(self, row: Row) -> None:
        said, now = sentence(row), time.monotonic()
        if said == self._said or (row["status"] == self._status and now - self._said_at < 5):
            return
        self._said, self._status, self._said_at = said, row["status"], now
        note(f"attempt {row['id']}: {said}")


def sentence(row: Row) -> str:
    """An attempt in half a line."""
    return (
        f"{row['status']}, {row['documents_total']} documents ({row['documents_new']} new), "
        f"{row['batches_done']} of {row['batches_total']} batches"
        + (f", waits for {row['waiting_for']}" if row["waiting_for"] else "")
    )


def _conclude(api: Api, row: Row, as_json: bool) -> int:
    if as_json:
        print_json(row)
    else:
        say(f"attempt {row['id']} of {row['connector']}: {sentence(row)}")
    if row["status"] == "completed":
        return 0
    if row["status"] == "completed_with_errors":
        note(f"warning: completed with errors (all of them: `hive attempts --errors {row['id']}`)")
        for each in _errors(api, row["id"]):
            note(f"  {each['document'] or ''}: {each['summary']} [{each['code']}]")
        return 0
    note(f"error: attempt {row['id']} {row['status']}" + (f": {row['error']}" if row["error"] else ""))
    return 1


def _errors(api: Api, attempt: int) -> list[Row]:
    try:
        return api.items(f"/v1/attempts/{attempt}/errors", limit=10)
    except CommandFailed:
        return []  # the attempt has completed: that its errors cannot be shown right now changes nothing
