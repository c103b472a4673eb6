"""`hive migrate` and `hive backup`: straight on the database, whether hive runs or not."""

from pathlib import Path

import click

from supervisor.cli.failure import FAILED, CommandFailed, hive_errors
from supervisor.cli.options import as_json, placed
from supervisor.cli.output import note, print_json, say
from supervisor.cli.place import Place


@click.command()
@click.option("--all-tenants", is_flag=True, help="The shared schema and every tenant; the default.")
@click.option("--tenant", "named", metavar="A,B", help="The shared schema and these tenants.")
@click.option("--range", "span", metavar="A..M", help="The shared schema and the tenants from A to M.")
@click.option(
    "--continue", "go_on", is_flag=True, help="Go on after a failure: what is done is never done again."
)
@click.option("--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Tenants at once.")
@as_json
@placed
def migrate(
    place: Place,
    *,
    all_tenants: bool,
    named: str | None,
    span: str | None,
    go_on: bool,
    parallel: int,
    as_json: bool,
) -> int:
    """Bring the schema up to date: the shared one first, then every tenant's, each in its own transaction.

    `hive run` does so by itself unless HIVE_POSTGRES__MIGRATE_ON_START=false. A tenant that fails keeps its
    old schema and stops no other; running it again goes on with what is left.

    \b
    Examples:
      hive migrate
      hive migrate --tenant acme,globex
      hive migrate --range a..m --parallel 8
    """
    del go_on  # each run does what is left; the option says so to those who look for it
    if sum((all_tenants, named is not None, span is not None)) > 1:
        raise CommandFailed("give one of --all-tenants, --tenant and --range", code=2)
    import asyncio

    from supervisor.cli.database import direct_dsn

    async def run() -> tuple[bool, list[str], dict[str, str]]:
        from hive.settings import Postgres
        from hive.store import migration
        from hive.store.postgres import Database
        from hive.store.tenants import Tenants

        async with direct_dsn(place) as dsn:
            shared = await migration.migrate_shared(dsn)
            database = await Database.open(dsn, settings=Postgres(pool_size=1))
            try:
                existing = [tenant.id for tenant in await Tenants(database).list()]
            finally:
                await database.close()
            done = await migration.migrate_tenants(
                dsn, migration.chosen(existing, named=named, span=span), parallel=parallel
            )
            return shared, [*done.tenants], {**done.failed}

    with hive_errors():
        shared, changed, failed = asyncio.run(run())
    if as_json:
        print_json({"shared": shared, "tenants": changed, "failed": failed})
    else:
        say("the shared schema was brought up to date" if shared else "the shared schema was up to date")
        say(
            f"{len(changed)} tenants were brought up to date" + (f": {', '.join(changed)}" if changed else "")
        )
    for tenant, reason in failed.items():
        note(f"error: tenant {tenant}: {reason} (mend it, then `hive migrate --continue`)")
    return FAILED if failed else 0


@click.command()
@click.argument("target", default="hive-backup.tar", metavar="[TARGET]")
@as_json
@placed
def backup(place: Place, target: str, as_json: bool) -> None:
    """Write what a restore needs to TARGET: a new folder, or a new file ending in .tar.

    A consistent dump of the database and the key that opens connectors' secrets; hive may run meanwhile. Keep
    it as secret as the database itself. Nothing is ever overwritten.

    \b
    Examples:
      hive backup
      hive backup /var/backups/hive-monday.tar
    """
    import asyncio

    from supervisor.cli.database import direct_dsn

    into = Path(target).absolute()

    async def run() -> tuple[str, int, bool]:
        from hive.store.backup import backup as write

        async with direct_dsn(place) as dsn:
            written = await write(into, direct_dsn=dsn, state_dir=place.state_dir)
            return str(written.path), written.total_bytes, written.key_included

    with hive_errors():
        path, size, key_included = asyncio.run(run())
    if as_json:
        print_json({"path": path, "bytes": size, "key_included": key_included})
        return
    say(f"{path}: {size / 1e6:.1f} MB")
    if not key_included:
        note("the key that opens connectors' secrets is in HIVE_SECRETS__KEY and not in here: keep it, too")
