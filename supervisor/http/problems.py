"""Errors as the API tells them: hive's error tree, and the few of its own, as JSON problems."""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from hive.errors import (
    ConfigurationError,
    Conflict,
    HiveError,
    InvalidInput,
    LeaseLost,
    NotFound,
    QueueFull,
    TenantMissing,
    Transient,
)


class Unauthenticated(HiveError):
    """The request carries no token, or one that nobody issued."""

    code = "unauthenticated"


class Forbidden(HiveError):
    """The token is good, but not for this."""

    code = "forbidden"


class TooLarge(HiveError):
    """The body is longer than the API reads."""

    code = "too_large"


class WrongMediaType(HiveError):
    """The body is not declared to be JSON. Also what keeps a foreign page's form from reaching the API."""

    code = "wrong_media_type"


class DeadlinePassed(Transient):
    """The request took longer than its route allows; its effect is unknown."""

    code = "deadline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """An error, ready to be sent."""

    status: int
    code: str
    message: str
    field: str | None = None
    remedy: str | None = None
    retry_after_seconds: float | None = None

    def content(self) -> dict[str, Mapping[str, str]]:
        """The JSON body: ``{"error": {"code", "message", "field"?, "remedy"?}}``."""
        error = {"code": self.code, "message": self.message}
        if self.field is not None:
            error["field"] = self.field
        if self.remedy is not None:
            error["remedy"] = self.remedy
        return {"error": error}


# The first class that fits wins, so narrower ones stand first.
_STATUSES: tuple[tuple[type[HiveError], int], ...] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (TooLarge, 413),
    (WrongMediaType, 415),
    (InvalidInput, 400),
    (TenantMissing, 400),
    (NotFound, 404),
    (Conflict, 409),
    (LeaseLost, 409),
    (QueueFull, 429),
    (Transient, 503),
    (ConfigurationError, 500),
)


def problem_of(error: HiveError) -> Problem:
    """``error`` with the status that fits it."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    return Problem(
        status=status,
        code=error.code,
        message=error.message,
        field=error.field if isinstance(error, InvalidInput) else None,
        remedy=error.remedy,
        retry_after_seconds=_retry_after(error, status),
    )


def _retry_after(error: HiveError, status: int) -> float | None:
    if isinstance(error, Transient) and error.retry_after_seconds is not None:
        return error.retry_after_seconds
    return 1.0 if status in (429, 503) else None


def refusal(error: ValidationError) -> InvalidInput:
    """What pydantic refused, by the name of its first field. Never repeats the value: it may be a secret."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "body"
    more = error.error_count() - 1
    message = (
        "unknown field" if first["type"] == "extra_forbidden" else first["msg"].removeprefix("Value error, ")
    )
    return InvalidInput(field, message + (f" (and {more} more)" if more else ""))
