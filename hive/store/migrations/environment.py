"""What both Alembic environments do: run one set on one schema, in the transaction they are given.

The caller (``hive.store.migration_worker``) puts ``connection`` and ``schema`` into the configuration's
attributes. A revision's ``upgrade`` hands its own file to ``run_sql``, which runs the ``.sql`` of the same
name.
"""

from pathlib import Path
from typing import Any

from alembic import context, op

from hive.store.schema import VERSION_TABLE
from hive.tenancy import EXTENSION_SCHEMA


def run() -> None:
    """Bring the schema in ``config.attributes`` to the revision that was asked for."""
    connection = context.config.attributes["connection"]
    schema = context.config.attributes["schema"]
    connection.exec_driver_sql(f"create schema if not exists {schema}")
    connection.exec_driver_sql(f"set local search_path = {schema}, {EXTENSION_SCHEMA}")
    context.configure(connection=connection, version_table=VERSION_TABLE, version_table_schema=schema)
    context.run_migrations()


def run_sql(revision_file: str) -> None:
    """Run ``../<revision>.sql``, which may hold many statements, in one query."""
    path = Path(revision_file)
    script = (path.parent.parent / f"{path.stem}.sql").read_text("utf-8")

    async def execute(driver_connection: Any) -> None:
        # asyncpg's simple query protocol: SQLAlchemy would prepare, and a prepared statement is one
        # statement.
        await driver_connection.execute(script)

    dbapi_connection: Any = op.get_bind().connection.dbapi_connection
    dbapi_connection.run_async(execute)
