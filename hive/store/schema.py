"""The two sets of tables (``shared``, and ``tenant`` once for each tenant): which revision stands where, and
how a schema is made anew. Without Alembic, which costs a process 30 MB and a tenant 100 ms; see
``migration``.

A revision is ``migrations/<set>/NNNN_noun.sql``, run by Alembic through ``versions/NNNN_noun.py``. A schema
is made anew from all files of its set in one query, and marked as if Alembic had run each.

The version stands in ``<schema>.hive_version``, for Alembic, and in the schema's comment, so that one query
over one small catalogue answers for ten thousand tenants; reading ten thousand tables would take as many
locks.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

import asyncpg

from hive.errors import ConfigurationError
from hive.ids import TenantId
from hive.store.connection import Connection
from hive.tenancy import EXTENSION_SCHEMA, SHARED_SCHEMA, schema_of

MIGRATIONS = Path(__file__).parent / "migrations"
VERSION_TABLE = "hive_version"
SetName = Literal["shared", "tenant"]

_FILE = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")
_COMMENT = "hive schema "


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One step of a set: its number as text, and the SQL that takes it."""

    number: str
    path: Path

    @property
    def sql(self) -> str:
        return self.path.read_text("utf-8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """What a database lacks. ``tenants``: each tenant that is behind, with its version (None: no tables)."""

    shared: bool
    tenants: Mapping[TenantId, str | None]

    def __bool__(self) -> bool:
        return self.shared or bool(self.tenants)


@cache
def revisions(name: SetName) -> Sequence[Revision]:
    """The revisions of a set, oldest first."""
    found = [
        Revision(number=match[1], path=path)
        for path in (MIGRATIONS / name).iterdir()
        if (match := _FILE.fullmatch(path.name))
    ]
    return sorted(found, key=lambda revision: revision.number)


def head(name: SetName) -> str:
    """The newest revision's number."""
    return revisions(name)[-1].number


def comment_of(number: str) -> str:
    """A schema's comment at that revision."""
    return _COMMENT + number


async def install(connection: Connection, name: SetName, schema: str) -> None:
    """Make ``schema`` with all tables of the set, inside the caller's transaction, in one query (25–50 ms).

    ``schema`` is a name that needs no quoting. The search path is the schema's until the transaction ends.
    Raises ConfigurationError when Postgres lacks pgvector or the right to use it.
    """
    if name == "shared":
        await check_extension(connection)
    steps = [f"create schema if not exists {schema};"]
    steps.append(f"set local search_path = {schema}, {EXTENSION_SCHEMA};")
    steps += [revision.sql for revision in revisions(name)]
    steps.append(
        f"create table {schema}.{VERSION_TABLE} (version_num varchar(32) not null,"
        f" constraint {VERSION_TABLE}_pkc primary key (version_num));"
        f"insert into {schema}.{VERSION_TABLE} (version_num) values ('{head(name)}');"
        f"comment on schema {schema} is '{comment_of(head(name))}';"
    )
    with_privileges(await _attempt(connection, "\n".join(steps)))


async def _attempt(connection: Connection, script: str) -> BaseException | None:
    try:
        await connection.execute(script)
    except (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError) as error:
        return error
    return None


def with_privileges(error: BaseException | None) -> None:
    """Raise the ConfigurationError that belongs to a refused schema or extension."""
    if error is None:
        return
    raise ConfigurationError(
        f"Postgres does not let hive make its schema: {error}",
        remedy="make hive's role the owner of its database; as a superuser, in that database: "
        f"create schema {EXTENSION_SCHEMA}; create extension vector schema {EXTENSION_SCHEMA}; "
        f"grant usage on schema {EXTENSION_SCHEMA} to <hive's role>",
    ) from error


async def check_extension(connection: Connection) -> None:
    """See that pgvector is there, in the schema where hive looks for it; raises ConfigurationError if not."""
    row = await connection.fetchrow(
        "select current_setting('server_version') as server,"
        " (select extnamespace::regnamespace::text from pg_extension where extname = 'vector') as schema,"
        " exists (select from pg_available_extensions where name = 'vector') as available"
    )
    assert row is not None
    if row["schema"] not in {None, EXTENSION_SCHEMA}:
        raise ConfigurationError(
            f'the extension "vector" lies in schema {row["schema"]}; hive needs it in {EXTENSION_SCHEMA}',
            remedy="give hive a database of its own, or, if nothing else uses the extension: "
            f"create schema {EXTENSION_SCHEMA}; alter extension vector set schema {EXTENSION_SCHEMA}",
        )
    if row["schema"] is None and not row["available"]:
        major = str(row["server"]).split(".")[0].split(" ")[0]
        raise ConfigurationError(
            f'the extension "vector" (pgvector) is not available on this PostgreSQL {row["server"]}',
            remedy=f"install it on that server (Debian: postgresql-{major}-pgvector;"
            f" image: pgvector/pgvector:pg{major}), or set no HIVE_POSTGRES__DSN:"
            " hive then starts a PostgreSQL that has it",
        )


async def pending(connection: Connection) -> Pending:
    """What lies behind the newest revisions: two cheap queries, whatever the number of tenants."""
    # By joins over pg_namespace: to_regnamespace() may answer from before an advisory lock was waited for.
    marked = await connection.fetchval(
        "select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = $1", SHARED_SCHEMA
    )
    shared = marked != comment_of(head("shared"))
    tenants_table = f"{SHARED_SCHEMA}.tenant"
    if marked is None and await connection.fetchval("select to_regclass($1)", tenants_table) is None:
        return Pending(shared=True, tenants={})
    rows = await connection.fetch(
        "select t.id, obj_description(n.oid, 'pg_namespace') as version"
        f" from {tenants_table} t left join pg_namespace n on n.nspname = t.schema_name"
        " where t.state <> 'deleting' and obj_description(n.oid, 'pg_namespace') is distinct from $1"
        " order by t.id",
        comment_of(head("tenant")),
    )
    behind = {
        TenantId(row["id"]): None if row["version"] is None else str(row["version"]).removeprefix(_COMMENT)
        for row in rows
    }
    return Pending(shared=shared, tenants=behind)


def schema_name(name: SetName, tenant: TenantId | None) -> str:
    """The schema that a set lives in."""
    if name == "shared":
        return SHARED_SCHEMA
    assert tenant is not None
    return schema_of(tenant)
