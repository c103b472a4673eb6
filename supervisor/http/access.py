"""Who calls, and for which tenant. Bearer tokens, never cookies: a foreign page can act for nobody.

Two kinds of token. The one in ``<state_dir>/token`` (mode 0600) is whoever sits on the host: role admin,
every tenant. Those in ``hive.api_token`` are looked up by their SHA-256, and the answer is kept for a few
seconds, so that a burst of requests is one query and a revoked token is refused soon.
"""

import hashlib
import hmac
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from aiohttp import web

from hive.clock import Clock
from hive.ids import TenantId
from hive.store.connection import Connection
from hive.tenancy import parse_tenant
from supervisor.http.problems import Forbidden, Unauthenticated
from supervisor.http.routing import NOBODY, Identity, Role, Route

TENANT_HEADER = "X-Hive-Tenant"
KEPT_SECONDS = 10.0
KEPT_TOKENS = 1024
MAX_TOKEN_LENGTH = 256
_ROLES = {"viewer": Role.VIEWER, "editor": Role.EDITOR, "admin": Role.ADMIN}


class Connections(Protocol):
    """Where connections come from: ``hive.store.postgres.Database``."""

    def acquire(self) -> AbstractAsyncContextManager[Connection]: ...


class TenantResolver(Protocol):
    """What turns a request's tenant into one that exists: ``hive.store.tenants.Tenants``."""

    async def resolve(self, tenant: str | None) -> TenantId: ...


class Access:
    """Decides for each request; the only place that does."""

    def __init__(self, *, token: str, database: Connections, tenants: TenantResolver, clock: Clock) -> None:
        self._local_digest = _digest(token)
        self._database = database
        self._tenants = tenants
        self._clock = clock
        self._kept: OrderedDict[bytes, tuple[float, Identity | None]] = OrderedDict()

    async def admit(self, request: web.Request, route: Route) -> tuple[Identity, TenantId | None]:
        """The caller and the tenant of ``request``.

        Raises Unauthenticated, Forbidden, TenantMissing, UnknownTenant or InvalidInput; StoreDown when a
        stored token cannot be looked up.
        """
        if route.role is Role.PUBLIC:
            return NOBODY, None
        identity = await self._identify(request)
        if route.role is None or identity.role < route.role:
            needed = "nobody" if route.role is None else route.role.name.lower()
            raise Forbidden(f"this needs the role {needed}; the token has {identity.role.name.lower()}")
        return identity, await self._tenant(request, route, identity)

    async def _identify(self, request: web.Request) -> Identity:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > MAX_TOKEN_LENGTH:
            raise Unauthenticated(
                "no token", remedy="send `Authorization: Bearer …`; the state folder's file `token` holds one"
            )
        digest = _digest(token)
        if hmac.compare_digest(digest, self._local_digest):
            return Identity(role=Role.ADMIN, local=True, name="local")
        identity = await self._look_up(digest)
        if identity is None:
            raise Unauthenticated("unknown token", remedy="is it that of another hive, or revoked?")
        return identity

    async def _look_up(self, digest: bytes) -> Identity | None:
        now = self._clock.monotonic()
        kept = self._kept.get(digest)
        if kept is not None and now - kept[0] < KEPT_SECONDS:
            return kept[1]
        async with self._database.acquire() as connection:
            row = await connection.fetchrow(
                "select name, role, tenant from hive.api_token where digest = $1 and revoked_at is null",
                digest,
                timeout=5,
            )
        identity = (
            None
            if row is None
            else Identity(
                role=_ROLES[row["role"]],
                tenant=None if row["tenant"] is None else TenantId(row["tenant"]),
                name=row["name"],
            )
        )
        self._kept[digest] = (now, identity)
        self._kept.move_to_end(digest)
        while len(self._kept) > KEPT_TOKENS:
            self._kept.popitem(last=False)
        return identity

    async def _tenant(self, request: web.Request, route: Route, identity: Identity) -> TenantId | None:
        asked = _asked_tenant(request)
        if identity.tenant is not None:
            if route.reach == "installation":
                raise Forbidden("this concerns the whole installation; the token is one tenant's")
            if asked is not None and asked != identity.tenant:
                raise Forbidden(f"the token is tenant {identity.tenant}'s alone")
            asked = identity.tenant
        match route.reach:
            case "installation":
                return None
            case "every_tenant":
                return None if asked is None else await self._tenants.resolve(asked)
            case "tenant":
                return await self._tenants.resolve(asked)


def _asked_tenant(request: web.Request) -> TenantId | None:
    header = request.headers.get(TENANT_HEADER)
    query = request.query.get("tenant")
    if header is not None and query is not None and header != query:
        raise Forbidden(f"the header {TENANT_HEADER} and the query name different tenants")
    asked = header if header is not None else query
    return None if asked is None else parse_tenant(asked)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
