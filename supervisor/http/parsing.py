"""Reading what a request carries: JSON bodies and query parameters, refused by name when they do not fit."""

import json
from typing import Never, TypeVar

from aiohttp import web
from pydantic import BaseModel, ValidationError

from hive.errors import InvalidInput
from supervisor.http.problems import TooLarge, WrongMediaType, refusal

MAX_BODY_BYTES = 1024 * 1024
MAX_DEPTH = 64

M = TypeVar("M", bound=BaseModel)


async def read_body(request: web.Request, model: type[M]) -> M:
    """The request's JSON body as ``model``. Raises WrongMediaType, TooLarge or InvalidInput."""
    # A form or a plain text is what a browser sends across origins without asking first.
    if request.content_type != "application/json":
        raise WrongMediaType("the body must be JSON", remedy="send `Content-Type: application/json`")
    if request.content_length is not None and request.content_length > MAX_BODY_BYTES:
        raise TooLarge(f"the body is {request.content_length} bytes; the API reads {MAX_BODY_BYTES}")
    try:
        raw = await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise TooLarge(f"the body is too long; the API reads {MAX_BODY_BYTES} bytes") from error
    content = parse_json(raw)
    if not isinstance(content, dict):
        raise InvalidInput("body", "must be a JSON object")
    try:
        return model.model_validate(content, strict=True)
    except ValidationError as error:
        raise refusal(error) from error


def read_query(request: web.Request, model: type[M]) -> M:
    """The request's query parameters as ``model``. ``tenant`` is the access check's and left out here."""
    values: dict[str, str] = {}
    for name, value in request.query.items():
        if name == "tenant":
            continue
        if name in values:
            raise InvalidInput(name[:60], "given twice")
        _check_text(name, name)
        _check_text(name, value)
        values[name] = value
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise refusal(error) from error


def refuse_query(request: web.Request) -> None:
    """For routes that take no query parameters: a misspelt filter must not look like an empty one."""
    for name in request.query:
        if name != "tenant":
            raise InvalidInput(name[:60], "unknown parameter")


def parse_json(raw: bytes) -> object:
    """``raw`` as JSON, or InvalidInput naming the place where it is not.

    Refused as well: NaN and Infinity, lone surrogates, NUL characters (Postgres stores none of them), nesting
    beyond 64 levels.
    """
    try:
        content: object = json.loads(raw.decode("utf-8"), parse_constant=_no_constant)
    except UnicodeDecodeError as error:
        raise InvalidInput("body", f"is not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(
            "body", f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from error
    except RecursionError as error:
        raise InvalidInput("body", f"is nested deeper than {MAX_DEPTH} levels") from error
    except ValueError as error:  # NaN, or an integer of thousands of digits
        raise InvalidInput("body", f"is not JSON: {error}"[:200]) from error
    _check(content, "body", 0)
    return content


def _check(value: object, place: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InvalidInput("body", f"is nested deeper than {MAX_DEPTH} levels")
    match value:
        case str():
            _check_text(place, value)
        case dict():
            for name, each in value.items():
                _check_text(place, str(name))
                _check(each, str(name) if place == "body" else f"{place}.{name}", depth + 1)
        case list():
            for position, each in enumerate(value):
                _check(each, f"{place}.{position}", depth + 1)
        case _:
            pass


def _check_text(place: str, text: str) -> None:
    if "\x00" in text:
        raise InvalidInput(place.replace("\x00", "\ufffd")[:60], "contains a NUL character")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidInput(place.encode("utf-8", "replace").decode()[:60], "contains half a surrogate pair")


def _no_constant(name: str) -> Never:
    raise ValueError(f"{name} is no JSON number")
