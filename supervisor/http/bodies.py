"""What callers may send: JSON bodies and query parameters. Unknown fields are refused."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_SECONDS = 366 * 24 * 3600

Name = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")]
Limit = Annotated[int, Field(ge=1, le=1000)]
StateName = Literal["scheduled", "pending", "running", "retrying", "completed", "failed", "cancelled"]


class Given(BaseModel):
    """Outside data: unknown fields refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NewTenant(Given):
    """``id``: 1 to 48 lower-case letters, digits and underscores."""

    id: str


class NewConnector(Given):
    """``add_root``: also let hive read below ``config.path``; only with the token of the state folder."""

    kind: Name
    name: Name
    config: dict[str, Any] = {}
    credential: dict[str, Any] | None = None
    refresh_seconds: Annotated[int, Field(ge=0, le=MAX_SECONDS)] = 600
    add_root: bool = False


class Enqueue(Given):
    """One message. ``key``: a second one is not enqueued while the first waits."""

    task: Name
    args: dict[str, Any] = {}
    key: Annotated[str, Field(min_length=1, max_length=500)] | None = None
    delay_seconds: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 0.0


class Ids(Given):
    """Dead letters, by their ids."""

    ids: Annotated[list[str], Field(min_length=1, max_length=1000)]


class ConnectorQuery(Given):
    name: str | None = None


class AttemptQuery(Given):
    """``connector``: a connector's name."""

    connector: str | None = None
    limit: Limit = 50


class LimitQuery(Given):
    limit: Limit = 100


class JobQuery(Given):
    queue: str | None = None
    state: StateName | None = None
    task: str | None = None
    limit: Limit = 100


class DeadQuery(Given):
    queue: str | None = None
    limit: Limit = 100


class SearchQuery(Given):
    q: Annotated[str, Field(min_length=1, max_length=2000)]
    limit: Annotated[int, Field(ge=1, le=100)] = 10
