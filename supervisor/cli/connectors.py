"""`hive connector add|list|run|pause|resume|remove`."""

import os
import sys
from typing import Any

import click

from supervisor.cli.api import Api
from supervisor.cli.failure import CommandFailed
from supervisor.cli.options import as_json, placed_in_tenant
from supervisor.cli.output import print_json, print_rows, say
from supervisor.cli.place import Place

REFRESH = click.option(
    "--refresh-seconds",
    type=click.IntRange(min=0),
    default=600,
    show_default=True,
    help="Read again this long after the last run; 0: only when asked.",
)
NAME = click.option("--name", required=True, help="A name of your own for it; unique in the tenant.")


@click.group()
def connector() -> None:
    """Add and steer connectors: the sources that hive reads and keeps indexed."""


@connector.group()
def add() -> None:
    """Add a connector; its first run starts at once."""


@add.command("files")
@NAME
@click.option(
    "--path", required=True, metavar="P", help="The folder, or one file; a relative one is resolved here."
)
@click.option("--include", multiple=True, metavar="GLOB", help="Only files that match; may be repeated.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="No files that match; may be repeated.")
@REFRESH
@as_json
@placed_in_tenant
def add_files(
    place: Place,
    *,
    name: str,
    path: str,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    refresh_seconds: int,
    as_json: bool,
) -> None:
    """Read a folder on hive's own host: html, md, txt, pdf, docx and more.

    The folder is added to those that hive may read below.

    \b
    Examples:
      hive connector add files --name docs --path ./docs
      hive connector add files --name manual --path /srv/manual --include '**/*.html' --exclude 'old/**'
    """
    config: dict[str, Any] = {
        "path": os.path.abspath(path)
    }  # links are resolved by hive, which checks the roots
    if include:
        config["include"] = list(include)
    if exclude:
        config["exclude"] = list(exclude)
    body = {
        "kind": "files",
        "name": name,
        "config": config,
        "refresh_seconds": refresh_seconds,
        "add_root": True,
    }
    _added(Api(place).post("/v1/connectors", body), as_json)


@add.command("web")
@NAME
@click.option("--start", required=True, metavar="URL", help="The first page, or a sitemap.")
@click.option("--max-pages", type=click.IntRange(min=1), metavar="N", help="Read no more pages than this.")
@click.option(
    "--max-depth", type=click.IntRange(min=0), metavar="D", help="Follow no more links in a row than this."
)
@click.option("--include", multiple=True, metavar="GLOB", help="Only URLs that match; may be repeated.")
@click.option("--exclude", multiple=True, metavar="GLOB", help="No URLs that match; may be repeated.")
@click.option("--allow-private", is_flag=True, help="Also read hosts in private networks, such as localhost.")
@click.option(
    "--credential-stdin", is_flag=True, help="Read a credential (a JSON object) from standard input."
)
@REFRESH
@as_json
@placed_in_tenant
def add_web(
    place: Place,
    *,
    name: str,
    start: str,
    max_pages: int | None,
    max_depth: int | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    allow_private: bool,
    credential_stdin: bool,
    refresh_seconds: int,
    as_json: bool,
) -> None:
    """Read a web site: pages of the start page's host, politely, as its robots.txt allows.

    \b
    Examples:
      hive connector add web --name python --start https://docs.python.org/3/ --max-pages 500
      hive connector add web --name intranet --start http://10.0.0.5/ --allow-private
    """
    config: dict[str, Any] = {"start": start}
    optional = {
        "max_pages": max_pages,
        "max_depth": max_depth,
        "include": list(include),
        "exclude": list(exclude),
    }
    config.update({key: value for key, value in optional.items() if value not in (None, [])})
    if allow_private:
        config["allow_private"] = True
    body: dict[str, object] = {
        "kind": "web",
        "name": name,
        "config": config,
        "refresh_seconds": refresh_seconds,
    }
    if credential_stdin:
        body["credential"] = _credential()
    _added(Api(place).post("/v1/connectors", body), as_json)


@connector.command("list")
@as_json
@placed_in_tenant
def list_connectors(place: Place, as_json: bool) -> None:
    """List the connectors.

    \b
    Example:
      hive connector list
    """
    columns = ("id", "name", "kind", "state", "refresh_seconds", "last_status", "last_attempt", "created_at")
    rows = Api(place).items("/v1/connectors")
    print_rows(rows, columns, as_json=as_json, empty="no connectors yet (`hive connector add files …`)")


@connector.command("run")
@click.argument("connector_name", metavar="NAME")
@as_json
@placed_in_tenant
def run(place: Place, connector_name: str, as_json: bool) -> None:
    """Start a run of connector NAME (or id) now; prints the attempt, also when one is under way already.

    \b
    Example:
      hive connector run docs
    """
    api = Api(place)
    answer = api.post(f"/v1/connectors/{find(api, connector_name)}/run")
    if as_json:
        print_json(answer)
    else:
        say(f"attempt {answer['attempt']} (watch it: `hive attempts --wait {answer['attempt']}`)")


@connector.command("pause")
@click.argument("connector_name", metavar="NAME")
@as_json
@placed_in_tenant
def pause(place: Place, connector_name: str, as_json: bool) -> None:
    """Start no further runs of connector NAME (or id); what it has indexed stays.

    \b
    Example:
      hive connector pause docs
    """
    _steer(place, connector_name, "pause", as_json)


@connector.command("resume")
@click.argument("connector_name", metavar="NAME")
@as_json
@placed_in_tenant
def resume(place: Place, connector_name: str, as_json: bool) -> None:
    """Let connector NAME (or id) run again.

    \b
    Example:
      hive connector resume docs
    """
    _steer(place, connector_name, "resume", as_json)


@connector.command("remove")
@click.argument("connector_name", metavar="NAME")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json
@placed_in_tenant
def remove(place: Place, connector_name: str, yes: bool, as_json: bool) -> None:
    """Remove connector NAME (or id) with the documents that only it brought.

    \b
    Example:
      hive connector remove docs --yes
    """
    api = Api(place)
    id = find(api, connector_name)
    if not yes and sys.stdin.isatty():
        click.confirm(f"Remove connector {connector_name} and its documents?", abort=True)
    answer = api.delete(f"/v1/connectors/{id}")
    if as_json:
        print_json(answer)
    else:
        say(f"connector {connector_name} removed")


def find(api: Api, name: str) -> int:
    """The id of the connector of that name, or ``name`` itself where it is an id."""
    named = api.items("/v1/connectors", name=name)
    if named:
        return int(named[0]["id"])
    if name.isascii() and name.isdigit():
        return int(name)
    raise CommandFailed(f"no connector is named {name!r}", remedy="`hive connector list` shows them")


def _steer(place: Place, name: str, verb: str, as_json: bool) -> None:
    api = Api(place)
    answer = api.post(f"/v1/connectors/{find(api, name)}/{verb}")
    if as_json:
        print_json(answer)
    else:
        say(f"connector {answer['name']} is {answer['state']}")


def _added(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(answer)
    else:
        watch = f"attempts --wait {answer['last_attempt']}" if answer["last_attempt"] else "attempts"
        say(f"connector {answer['name']} added with id {answer['id']} (watch it: `hive {watch}`)")


def _credential() -> dict[str, Any]:
    """From standard input: on the command line everybody on the host could read it."""
    import json

    try:
        credential = json.loads(sys.stdin.read())
    except ValueError as error:
        raise CommandFailed(f"the credential is not JSON: {error}", code=2) from None
    if not isinstance(credential, dict):
        raise CommandFailed("the credential is not a JSON object", code=2)
    return credential
