"""Reaching the database without a running hive, for `migrate`, `backup`, and what looks into it meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from hive.config_file import load
from hive.embedded import EmbeddedPostgres
from hive.errors import Conflict
from hive.settings import Log
from supervisor import logs
from supervisor.cli.failure import STORES_MISSING, CommandFailed
from supervisor.cli.place import Place


class NoDatabase(CommandFailed):
    """No address is configured, and no hive ever made a database in this state folder."""


@asynccontextmanager
async def direct_dsn(place: Place) -> AsyncGenerator[str]:
    """The DSN for LISTEN and migrations. An embedded server that does not run is started for this long.

    Raises ConfigurationError, StoresMissing or NoDatabase.
    """
    logs.configure(Log(level="warning"))
    settings = load(place.config, overrides=place.overrides())
    given = settings.postgres.direct_dsn.get_secret_value() or settings.postgres.dsn.get_secret_value()
    if given:
        yield given
        return
    server = EmbeddedPostgres(place.state_dir, settings.embedded)
    if not server.exists:
        raise NoDatabase(
            f"there is no database in state folder {place.state_dir} yet",
            remedy="start hive there once",
            code=STORES_MISSING,
        )
    try:
        dsn = await server.start()
    except Conflict:
        yield server.dsn  # a hive runs there: its server serves us as well
        return
    try:
        yield dsn
    finally:
        await asyncio.shield(server.stop())
