"""Tenants: a row in the shared schema and a schema of their own, made together or not at all."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import asyncpg

from hive.errors import Conflict, InvalidInput, TenantMissing, UnknownTenant
from hive.ids import DEFAULT_TENANT, TenantId
from hive.logger import get_logger
from hive.store.connection import Connection
from hive.store.postgres import Database
from hive.store.schema import install
from hive.tenancy import parse_tenant, schema_of

log = get_logger(__name__)

CHANNEL = "hive_tenants"
_COLUMNS = "id, schema_name, weight, state, timezone, created_at"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant, as it stands in ``hive.tenant``."""

    id: TenantId
    schema_name: str
    weight: int
    state: str
    timezone: str
    created_at: datetime


class Tenants:
    """The tenants of one hive.

    ``model``, ``dimension`` and ``language`` describe the index that a new tenant begins with.
    """

    def __init__(
        self,
        database: Database,
        *,
        model: str = "wordllama-256",
        dimension: int = 256,
        language: str = "english",
    ) -> None:
        self._database = database
        self._model = model
        self._dimension = dimension
        self._language = language

    async def create(self, tenant: str) -> Tenant:
        """Make a tenant with its schema, tables and search settings, in one transaction.

        Raises InvalidInput (a bad id, an unknown text search language) or Conflict (it exists). Cancelled, it
        leaves nothing behind. Every hive learns of it at once.
        """
        identifier = parse_tenant(tenant)
        try:
            async with self._database.transaction() as connection:
                await self._check_language(connection)
                row = await connection.fetchrow(
                    f"insert into hive.tenant (id, schema_name) values ($1, $2) returning {_COLUMNS}",
                    identifier,
                    schema_of(identifier),
                )
                assert row is not None
                await install(connection, "tenant", schema_of(identifier))
                await connection.execute(
                    "insert into search_settings (model, dimension, language) values ($1, $2, $3)",
                    self._model,
                    self._dimension,
                    self._language,
                )
                await connection.execute(f"notify {CHANNEL}")
        except asyncpg.UniqueViolationError:
            raise Conflict(f"tenant {identifier!r} exists already") from None
        except asyncpg.DuplicateTableError:
            raise Conflict(
                f"schema {schema_of(identifier)} exists already, without a tenant of that id",
                remedy="move it away, or drop it if nothing in it is needed",
            ) from None
        log.info("tenant.created", tenant=identifier)
        return _tenant(row)

    async def list(self) -> list[Tenant]:
        """Every tenant, by id."""
        async with self._database.acquire() as connection:
            rows = await connection.fetch(f"select {_COLUMNS} from hive.tenant order by id")
        return [_tenant(row) for row in rows]

    async def active(self) -> dict[TenantId, bool]:
        """The active tenants, and whether each may have work for its periodic tasks."""
        async with self._database.acquire() as connection:
            rows = await connection.fetch("select id, working from hive.tenant where state = 'active'")
        return {row["id"]: row["working"] for row in rows}

    async def get(self, tenant: str) -> Tenant:
        """One tenant; raises UnknownTenant."""
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(f"select {_COLUMNS} from hive.tenant where id = $1", tenant)
        if row is None:
            raise UnknownTenant(f"no tenant {tenant[:60]!r}", remedy="`hive tenant list` names them")
        return _tenant(row)

    async def ensure_default(self) -> None:
        """Make the tenant ``public`` if there is no tenant at all. Two hives may do so at once."""
        async with self._database.acquire() as connection:
            if await connection.fetchval("select exists (select from hive.tenant)"):
                return
        try:
            await self.create(DEFAULT_TENANT)
        except Conflict:
            log.debug("tenant.made_by_another", tenant=DEFAULT_TENANT)

    async def resolve(self, tenant: str | None) -> TenantId:
        """The tenant that was meant: the named one, or the only one there is.

        Raises UnknownTenant for a name that does not exist, and TenantMissing when none was named and there
        is not exactly one. Fails closed: nothing is guessed among several.
        """
        if tenant is not None:
            return (await self.get(tenant)).id
        async with self._database.acquire() as connection:
            rows = await connection.fetch("select id from hive.tenant order by id limit 2")
        if len(rows) != 1:
            found = "several tenants" if rows else "no tenant yet"
            raise TenantMissing(
                f"there are {found}, and none was named" if rows else f"there is {found}",
                remedy="name one with --tenant" if rows else "make one with `hive tenant create`",
            )
        return TenantId(rows[0]["id"])

    async def _check_language(self, connection: Connection) -> None:
        known = await connection.fetchval(
            "select exists (select from pg_ts_config where cfgname = $1 and pg_ts_config_is_visible(oid))",
            self._language,
        )
        if not known:
            rows = await connection.fetch("select cfgname::text as name from pg_ts_config order by 1")
            raise InvalidInput(
                "search.language",
                f"Postgres has no text search configuration {self._language[:60]!r}",
                remedy="one of: " + ", ".join(row["name"] for row in rows),
            )


def _tenant(row: Mapping[str, Any]) -> Tenant:
    return Tenant(
        id=TenantId(row["id"]),
        schema_name=row["schema_name"],
        weight=row["weight"],
        state=row["state"],
        timezone=row["timezone"],
        created_at=row["created_at"],
    )
