"""The current tenant, and the names made from it. Everything here fails closed: no tenant, no work."""

import re
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token

from hive.errors import InvalidInput, TenantMissing
from hive.ids import TenantId

EXTENSION_SCHEMA = "hive_ext"
SHARED_SCHEMA = "hive"

_current: ContextVar[TenantId | None] = ContextVar("hive_tenant", default=None)
_VALID = re.compile(r"[a-z0-9][a-z0-9_]{0,47}")


def parse_tenant(value: str) -> TenantId:
    """``value`` as a tenant id; raises InvalidInput unless it is 1–48 of a–z, 0–9, _ and begins with no _."""
    if not _VALID.fullmatch(value):
        raise InvalidInput(
            "tenant",
            f"{value[:60]!r} is not a tenant id",
            remedy="use 1 to 48 lower-case letters, digits and underscores, not beginning with an underscore",
        )
    return TenantId(value)


def current_tenant() -> TenantId:
    """The tenant this code runs for; raises TenantMissing when there is none."""
    tenant = _current.get()
    if tenant is None:
        raise TenantMissing(
            "tenant work without a tenant", remedy="enter `with acting_for(tenant):` or pass the tenant"
        )
    return tenant


def current_tenant_or_none() -> TenantId | None:
    """The tenant this code runs for, or None in system work."""
    return _current.get()


class _Acting:
    """One entering of ``acting_for``. As a generator it would take 1 µs more, around every handler."""

    __slots__ = ("_tenant", "_token")
    _token: Token[TenantId | None]

    def __init__(self, tenant: TenantId | None) -> None:
        self._tenant = tenant

    def __enter__(self) -> None:
        self._token = _current.set(self._tenant)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def acting_for(tenant: TenantId | None) -> AbstractContextManager[None]:
    """Run the body for ``tenant`` (None: as system work). Nests; the outer tenant comes back afterwards."""
    return _Acting(tenant)


def schema_of(tenant: TenantId) -> str:
    """The tenant's own schema in Postgres."""
    return f"tenant_{parse_tenant(tenant)}"


def search_path_of(tenant: TenantId) -> str:
    """What ``search_path`` is set to inside a tenant's transaction: never ``public``."""
    return f"{schema_of(tenant)}, {EXTENSION_SCHEMA}"


def key_prefix_of(tenant: TenantId) -> str:
    """What every Redis key of the tenant begins with."""
    return f"hive:t:{parse_tenant(tenant)}:"
