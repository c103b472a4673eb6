"""`hive search`."""

import click

from supervisor.cli.api import Api
from supervisor.cli.options import as_json, placed_in_tenant
from supervisor.cli.output import note, print_json
from supervisor.cli.place import Place
from supervisor.cli.plain_text import clean


@click.command()
@click.argument("query")
@click.option(
    "--limit", type=click.IntRange(1, 100), default=10, show_default=True, help="Results at the most."
)
@as_json
@placed_in_tenant
def search(place: Place, query: str, limit: int, as_json: bool) -> None:
    """Find what QUERY means in the indexed documents: by meaning and by words, best first.

    \b
    Examples:
      hive search "graceful shutdown"
      hive search "parse command line options" --limit 3 --json
    """
    results = Api(place).items("/v1/search", q=query, limit=limit)
    if as_json:
        print_json(results)
        return
    if not results:
        note("nothing found (are documents indexed? `hive attempts` says so)")
    for place_in_list, result in enumerate(results, 1):
        title = clean(str(result["title"])).replace("\n", " ")
        click.echo(f"{place_in_list:>2}. {click.style(title, bold=True)}  ({result['score']:.4f})")
        click.echo(f"    {click.style(clean(str(result['link'])), fg='cyan')}")
        click.echo(f"    {' '.join(clean(str(result['snippet'])).split())}\n")
