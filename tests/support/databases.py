"""Databases for tests: taken as good as new, and given back.

A clone of the template writes 9 MB, and that was a third of the suite's time. So a database that is given
back is put right instead: what the test added is dropped, rows and sequences become the template's again. It
is used once more only if a recount then finds the template's catalogues to the row, nobody connected, and
little growth; in every other case it is dropped and the next test gets a clone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit, urlunsplit

import anyio
import asyncpg

from hive.ids import DEFAULT_TENANT
from hive.settings import Postgres
from hive.store.postgres import Database
from hive.store.schema import install
from hive.store.tenants import Tenants

TEMPLATE = "hive_template"
_MAX_GROWTH_BYTES = 4 * 1024 * 1024
_LEAVING_SECONDS = 1.0  # a backend ends a moment after its client has closed

_OTHERS = (
    "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
)
_CATALOGS = """
    select c.oid::regclass::text from pg_class c
    where c.relnamespace = 'pg_catalog'::regnamespace and c.relkind = 'r' and not c.relisshared
      and has_table_privilege(c.oid, 'select')
"""
_SCHEMAS = """
    select oid, nspname as name from pg_namespace
    where nspname !~ '^pg_' and nspname <> 'information_schema'
"""
_RELATIONS = """
    select c.oid, c.relkind = 'r' as holds_rows, format('%I.%I', n.nspname, c.relname) as name
    from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where n.nspname !~ '^pg_' and n.nspname <> 'information_schema' and c.relkind in ('r', 'p')
    order by name
"""
_SEQUENCES = """
    select format('%I.%I', schemaname, sequencename) as name, coalesce(last_value, start_value) as value,
      last_value is not null as called
    from pg_sequences
"""


def on_database(dsn: str, name: str) -> str:
    """The same server's other database."""
    return urlunsplit(urlsplit(dsn)._replace(path=f"/{name}"))


async def run(dsn: str, statement: str) -> None:
    """One statement on a connection of its own."""
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def make_template(admin_dsn: str, name: str) -> None:
    """A database with hive's schema and the tenant ``public``, to be cloned."""
    await run(admin_dsn, f"create database {name}")
    database = await Database.open(on_database(admin_dsn, name), settings=Postgres(pool_size=1))
    try:
        async with database.transaction() as transaction:
            await install(transaction, "shared", "hive")
        await Tenants(database).create(DEFAULT_TENANT)
    finally:
        await database.close()


@dataclass(frozen=True, slots=True)
class Original:
    """The template as it is: what a database must be equal to before it is used again."""

    bytes: int
    schemas: frozenset[int]
    relations: frozenset[int]
    sequences: Mapping[str, tuple[int, bool]]
    contents: Mapping[str, str | None]
    rows: Mapping[str, list[str]]
    catalogs_query: str
    catalogs: Mapping[str, tuple[int, int]]

    @classmethod
    async def of(cls, dsn: str) -> "Original":
        connection = await asyncpg.connect(dsn)
        try:
            relations = await connection.fetch(_RELATIONS)
            catalogs_query = " union all ".join(
                # Every change of a catalogue's row leaves a younger one, or one less.
                f"select '{row[0]}', count(*), max(xmin::text::bigint) from {row[0]}"
                for row in await connection.fetch(_CATALOGS)
            )
            contents = await _contents(connection, [row["name"] for row in relations if row["holds_rows"]])
            return cls(
                bytes=await connection.fetchval("select pg_database_size(current_database())"),
                schemas=frozenset(row["oid"] for row in await connection.fetch(_SCHEMAS)),
                relations=frozenset(row["oid"] for row in relations),
                sequences=await _sequences(connection),
                contents=contents,
                rows={
                    name: await connection.fetchval(f"select array_agg(t::text) from {name} t")
                    for name, text in contents.items()
                    if text is not None
                },
                catalogs_query=catalogs_query,
                catalogs=await _catalogs(connection, catalogs_query),
            )
        finally:
            await connection.close()

    async def restore(self, dsn: str) -> bool:
        """Make a used database equal to the template; False where that is not known to have succeeded."""
        try:
            connection = await asyncpg.connect(dsn)
        except (asyncpg.PostgresError, OSError):
            return False
        try:
            with anyio.move_on_after(_LEAVING_SECONDS):
                while await connection.fetchval(_OTHERS):
                    await anyio.sleep(0.002)
            if await connection.fetchval(_OTHERS):
                return False
            async with connection.transaction():
                await self._drop_added(connection)
                changed = await self._put_back(connection)
            return (
                await _catalogs(connection, self.catalogs_query) == self.catalogs
                and await _contents(connection, list(changed)) == changed
                and await connection.fetchval("select pg_database_size(current_database())")
                < self.bytes + _MAX_GROWTH_BYTES
            )
        except asyncpg.PostgresError:
            return False
        finally:
            await connection.close()

    async def _drop_added(self, connection: asyncpg.Connection) -> None:
        for row in await connection.fetch(_SCHEMAS):
            if row["oid"] not in self.schemas:
                await connection.execute(f'drop schema "{row["name"]}" cascade')
        for row in await connection.fetch(_RELATIONS):
            if row["oid"] not in self.relations:
                await connection.execute(f"drop table {row['name']}")

    async def _put_back(self, connection: asyncpg.Connection) -> Mapping[str, str | None]:
        """The tables that were not as they should be, with what should be in them."""
        found = await _contents(connection, list(self.contents))
        changed = [name for name, text in found.items() if text != self.contents[name]]
        if changed:
            # In one statement: keys between the tables are checked at its end.
            deletes = (
                f"d{at} as (delete from {name} t where t::text <> all(${at + 1}::text[]))"
                for at, name in enumerate(changed)
            )
            kept = [self.rows.get(name, []) for name in changed]
            await connection.execute(f"with {', '.join(deletes)} select 1", *kept)
        at = await _sequences(connection)
        for name, wanted in self.sequences.items():
            if at.get(name) != wanted:
                await connection.execute("select setval($1, $2, $3)", name, *wanted)
        return {name: self.contents[name] for name in changed}


async def _catalogs(connection: asyncpg.Connection, query: str) -> dict[str, tuple[int, int]]:
    return {row[0]: (row[1], row[2]) for row in await connection.fetch(query)}


async def _contents(connection: asyncpg.Connection, tables: Sequence[str]) -> dict[str, str | None]:
    """For each table a digest of its rows, None where there are none."""
    if not tables:
        return {}
    query = " union all ".join(
        f"select '{name}', md5(string_agg(t::text, E'\\n' order by t::text)) from {name} t" for name in tables
    )
    return {row[0]: row[1] for row in await connection.fetch(query)}


async def _sequences(connection: asyncpg.Connection) -> dict[str, tuple[int, bool]]:
    return {row["name"]: (row["value"], row["called"]) for row in await connection.fetch(_SEQUENCES)}


@dataclass(slots=True)
class PostgresServer:
    """The run's server. ``admin_dsn``: a database to create and drop others from."""

    admin_dsn: str
    original: Original
    cloned: int = 0
    reused: int = 0
    _shelf: list[str] = field(default_factory=list)
    _made: int = 0

    @classmethod
    async def over(cls, admin_dsn: str) -> "PostgresServer":
        await make_template(admin_dsn, TEMPLATE)
        return cls(admin_dsn, await Original.of(on_database(admin_dsn, TEMPLATE)))

    async def take(self) -> str:
        """A database as the template is; returns its DSN."""
        if self._shelf:
            self.reused += 1
            return self._shelf.pop()
        self.cloned += 1
        return await self.create(TEMPLATE)

    async def give_back(self, dsn: str) -> None:
        """For the next test if it can be put right, else dropped."""
        if await self.original.restore(dsn):
            self._shelf.append(dsn)
        else:
            await self.drop(dsn)

    async def create(self, template: str) -> str:
        """A new database; returns its DSN."""
        self._made += 1
        name = f"test_{self._made}"
        await run(self.admin_dsn, f"create database {name} template {template}")
        return on_database(self.admin_dsn, name)

    async def drop(self, dsn: str) -> None:
        """Drop a database and whoever is still connected to it."""
        name = urlsplit(dsn).path.removeprefix("/")
        await run(self.admin_dsn, f"drop database if exists {name} with (force)")
