"""Connectors as people know them: a source with its credential, under a name of its own."""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Protocol, cast

import asyncpg

from hive.client import Client
from hive.context import Stores
from hive.errors import Conflict, InvalidInput, NotFound
from hive.ids import AttemptId, PairId, TenantId
from hive.ingest.attempts import Attempts
from hive.ingest.completion import AttemptStatus
from hive.ingest.connectors import catalogue
from hive.ingest.removal import Removal
from hive.logger import get_logger
from hive.store.connection import Connection, Row

log = get_logger(__name__)

PairState = Literal["active", "paused", "removing"]
LONGEST_NAME: Final = 120
LONGEST_REFRESH_SECONDS: Final = 10 * 365 * 86400


class Seals(Protocol):
    """Encrypts what must not be read from a copy of the database: ``hive.store.sealing.Sealer``."""

    def seal(self, plain: bytes) -> bytes: ...
    def unseal(self, sealed: bytes) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PairView:
    """A connector as people and programs see it. Its credential is never shown."""

    id: PairId
    name: str
    kind: str
    config: Mapping[str, Any]
    state: PairState
    refresh_seconds: int
    has_credential: bool
    documents: int
    last_attempt: AttemptId | None
    last_status: AttemptStatus | None
    created_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSource:
    """What a fetch child is told of a connector, the opened credential included."""

    kind: str
    config: Mapping[str, Any]
    credential: Mapping[str, Any] | None


class Pairs:
    """The connectors of every tenant."""

    def __init__(self, stores: Stores, sealer: Seals) -> None:
        self._stores = stores
        self._sealer = sealer
        self._attempts = Attempts(stores)

    async def add(
        self,
        tenant: TenantId,
        *,
        kind: str,
        name: str,
        config: Mapping[str, Any],
        credential: Mapping[str, Any] | None = None,
        refresh_seconds: int = 600,
    ) -> PairView:
        """Add a connector; its first run starts with the next check, within seconds.

        ``refresh_seconds``: how long after the end of a run the next one starts; 0: only when asked.
        Raises InvalidInput naming the field, or Conflict when the name is taken.
        """
        name = _checked_name(name)
        if not 0 <= refresh_seconds <= LONGEST_REFRESH_SECONDS:
            raise InvalidInput("refresh_seconds", f"{refresh_seconds} is not between 0 and ten years")
        checked = catalogue.validate(kind, dict(config))
        sealed = None if credential is None else self._sealer.seal(json.dumps(dict(credential)).encode())
        try:
            async with self._stores.transaction(tenant) as connection:
                pair = await connection.fetchval(_INSERT, kind, checked, sealed, name, refresh_seconds)
        except asyncpg.UniqueViolationError as error:
            raise Conflict(
                f"a connector named {name!r} exists already", remedy="take another name, or remove that one"
            ) from error
        log.info("connector.added", tenant=tenant, pair=pair, kind=kind)
        return await self.get(tenant, PairId(pair))

    async def list(self, tenant: TenantId) -> Sequence[PairView]:
        """All connectors, in the order they were added."""
        async with self._stores.transaction(tenant) as connection:
            rows = await connection.fetch(_VIEW + "order by p.id")
        return [_view(row) for row in rows]

    async def get(self, tenant: TenantId, pair: PairId) -> PairView:
        """One connector; raises NotFound."""
        async with self._stores.transaction(tenant) as connection:
            row = await connection.fetchrow(_VIEW + "where p.id = $1", pair)
        if row is None:
            raise NotFound(f"no connector has the id {pair}", remedy="`hive connector list` shows them")
        return _view(row)

    async def by_name(self, tenant: TenantId, name: str) -> PairView:
        """One connector by its name; raises NotFound."""
        async with self._stores.transaction(tenant) as connection:
            row = await connection.fetchrow(_VIEW + "where p.name = $1", name)
        if row is None:
            raise NotFound(f"no connector is named {name!r}", remedy="`hive connector list` shows them")
        return _view(row)

    async def pause(self, tenant: TenantId, pair: PairId) -> PairView:
        """Start no further runs. One that is under way goes on; cancel it to stop it."""
        return await self._move(tenant, pair, "paused")

    async def resume(self, tenant: TenantId, pair: PairId) -> PairView:
        """Start runs again, when they are due."""
        return await self._move(tenant, pair, "active")

    async def _move(self, tenant: TenantId, pair: PairId, state: PairState) -> PairView:
        async with self._stores.transaction(tenant) as connection:
            await _writable(connection, pair)
            await connection.execute(
                "update connector_credential_pair set state = $2 where id = $1", pair, state
            )
        return await self.get(tenant, pair)

    async def request_run(self, tenant: TenantId, pair: PairId, *, client: Client) -> AttemptId:
        """Start a run now; returns its attempt, or the active one. Raises NotFound, Conflict when paused."""
        async with self._stores.transaction(tenant) as connection:
            if await _writable(connection, pair) == "paused":
                raise Conflict(f"connector {pair} is paused", remedy="resume it first")
        return (await self._attempts.start(tenant, pair, client=client)).attempt

    async def remove(self, tenant: TenantId, pair: PairId, *, client: Client) -> int:
        """Remove a connector with everything only it brought; returns how many documents went.

        Works in short transactions. If it is cut off, the connector stays `removing`, and the next check goes
        on where it stopped.
        """
        async with self._stores.transaction(tenant) as connection:
            moved = await connection.fetchval(
                "update connector_credential_pair set state = 'removing' where id = $1 returning true", pair
            )
        if not moved:
            raise NotFound(f"no connector has the id {pair}", remedy="`hive connector list` shows them")
        return await Removal(self._stores, self._attempts).run(tenant, pair, client=client)

    async def source(self, tenant: TenantId, pair: PairId) -> PairSource:
        """The connector's kind, configuration and opened credential; raises NotFound."""
        async with self._stores.transaction(tenant) as connection:
            row = await connection.fetchrow(
                "select c.kind, c.config, k.sealed from connector_credential_pair p "
                "join connector c on c.id = p.connector left join credential k on k.id = p.credential "
                "where p.id = $1",
                pair,
            )
        if row is None:
            raise NotFound(f"no connector has the id {pair}")
        sealed: bytes | None = row["sealed"]
        credential = None if sealed is None else json.loads(self._sealer.unseal(sealed))
        return PairSource(kind=row["kind"], config=row["config"], credential=credential)


async def _writable(connection: Connection, pair: PairId) -> PairState:
    """Lock the connector and return its state; raises NotFound, or Conflict while it is being removed."""
    state = await connection.fetchval(
        "select state from connector_credential_pair where id = $1 for no key update", pair
    )
    if state is None:
        raise NotFound(f"no connector has the id {pair}", remedy="`hive connector list` shows them")
    if state == "removing":
        raise Conflict(f"connector {pair} is being removed")
    return cast(PairState, state)


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > LONGEST_NAME:
        raise InvalidInput("name", f"a name has 1 to {LONGEST_NAME} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in name):
        raise InvalidInput("name", "a name holds no control characters")
    return name


_INSERT = """
with c as (insert into connector (kind, config) values ($1, $2) returning id),
     k as (insert into credential (sealed) select $3 where $3::bytea is not null returning id)
insert into connector_credential_pair (name, connector, credential, refresh_seconds, run_requested_at)
select $4, c.id, (select id from k), $5, now() from c
returning id
"""

_VIEW = """
select p.id, p.name, c.kind, c.config, p.state, p.refresh_seconds, p.credential is not null as has_credential,
       (select count(*) from document_source where pair = p.id) as documents,
       last.id as last_attempt, last.status as last_status, p.created_at
from connector_credential_pair p
join connector c on c.id = p.connector
left join lateral (
    select id, status from index_attempt where pair = p.id order by id desc limit 1
) last on true
"""


def _view(row: Row) -> PairView:
    attempt, status = row["last_attempt"], row["last_status"]
    return PairView(
        id=PairId(row["id"]),
        name=row["name"],
        kind=row["kind"],
        config=row["config"],
        state=row["state"],
        refresh_seconds=row["refresh_seconds"],
        has_credential=row["has_credential"],
        documents=row["documents"],
        last_attempt=None if attempt is None else AttemptId(attempt),
        last_status=None if status is None else AttemptStatus(status),
        created_at=row["created_at"],
    )
