"""The route table: what a route declares, and what its handler is given.

Access, the openapi document and the tests are all made from this one table, so a route cannot be served
without having said who may call it.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, TypeVar

from aiohttp import web
from pydantic import BaseModel

from hive.errors import ConfigurationError, NotFound
from hive.ids import TenantId
from supervisor.http.backend import Backend

M = TypeVar("M", bound=BaseModel)

MAX_ROW_ID = 2**63 - 1


class Role(IntEnum):
    """Who may call a route; each role may do what those below it may. ``PUBLIC`` needs no token."""

    PUBLIC = 0
    VIEWER = 1
    EDITOR = 2
    ADMIN = 3


Reach = Literal["tenant", "every_tenant", "installation"]
"""What a route touches.

``tenant``: one tenant, named by the request or the only one. ``every_tenant``: all of them, or those the
token and the request narrow it to. ``installation``: the process itself; a token of one tenant is refused.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who calls: a role, for one tenant or (None) for all. ``local``: by the token in the state folder."""

    role: Role
    tenant: TenantId | None = None
    local: bool = False
    name: str = ""


NOBODY = Identity(role=Role.PUBLIC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request, checked: who calls, for which tenant, and the parsed query and body.

    ``tenant`` is set on routes that reach one tenant; on ``every_tenant`` routes None means all of them.
    """

    request: web.Request
    backend: Backend
    identity: Identity
    tenant: TenantId | None
    parsed_query: BaseModel | None
    parsed_body: BaseModel | None

    def query(self, model: type[M]) -> M:
        """The query parameters, as the route declared them."""
        if not isinstance(self.parsed_query, model):
            raise ConfigurationError(f"{self.request.path}: the route declares no {model.__name__} query")
        return self.parsed_query

    def body(self, model: type[M]) -> M:
        """The JSON body, as the route declared it."""
        if not isinstance(self.parsed_body, model):
            raise ConfigurationError(f"{self.request.path}: the route declares no {model.__name__} body")
        return self.parsed_body

    def one_tenant(self) -> TenantId:
        """The tenant of a ``tenant`` route."""
        if self.tenant is None:
            raise ConfigurationError(f"{self.request.path}: the route does not reach a single tenant")
        return self.tenant

    def row_id(self, thing: str) -> int:
        """The ``{id}`` of the path as a row's number; raises NotFound when no row can have it."""
        text = self.request.match_info["id"]
        if not (text.isascii() and text.isdigit()) or len(text) > 19 or not 0 < int(text) <= MAX_ROW_ID:
            raise NotFound(f"no {thing} {text[:60]!r}", remedy=f"the id of each {thing} is a whole number")
        return int(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a handler returns: a value for JSON, or raw bytes with their content type."""

    content: object = None
    status: int = 200
    raw: bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


Handler = Callable[[Call], Awaitable[Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One line of the table. ``answers``: the model of its answer, or of one item where ``many``.

    ``or_status``: another status under which it answers the same way.
    """

    method: Literal["GET", "POST", "DELETE"]
    path: str
    handler: Handler
    role: Role | None
    reach: Reach
    summary: str
    answers: type[BaseModel] | None = None
    many: bool = False
    query: type[BaseModel] | None = None
    body: type[BaseModel] | None = None
    status: int = 200
    or_status: int | None = None
    deadline_seconds: float = 30.0

    @property
    def name(self) -> str:
        """A name that is unique in the table: the openapi operationId."""
        words = [part for part in self.path.replace("{", "").replace("}", "").split("/") if part]
        return "_".join([self.method.lower(), *(word.replace(".", "_") for word in words)])


def verify(routes: tuple[Route, ...]) -> None:
    """Refuse to start with a route that says not who may call it, or that stands in the table twice."""
    seen: set[str] = set()
    for route in routes:
        if not isinstance(route.role, Role):
            raise ConfigurationError(
                f"route {route.method} {route.path} declares neither a role nor public",
                remedy="give it a Role in its line of the table",
            )
        if route.role is Role.PUBLIC and route.reach != "installation":
            raise ConfigurationError(
                f"route {route.method} {route.path} is public and reaches tenants", remedy="give it a role"
            )
        if route.name in seen:
            raise ConfigurationError(f"route {route.method} {route.path} stands in the table twice")
        seen.add(route.name)
