"""The connectors by kind. Importing it costs little: parsers and HTTP clients come with a connector, and the
models of their configurations (12 ms to build) with the first that is looked at.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError

from hive.errors import InvalidInput
from hive.settings import WebConnector

if TYPE_CHECKING:
    from hive.ingest.connectors.port import Connector

Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class KindDescription:
    """A kind of connector, for people and for API clients. ``schema``: JSON schema of its configuration."""

    kind: str
    summary: str
    schema: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    summary: str
    source: str  # "module:name" of its configuration's model
    code: str  # and of itself


_KINDS: Mapping[str, _Kind] = {
    "files": _Kind(
        summary="A folder on the host: html, md, txt, rst, pdf, docx.",
        source="hive.ingest.connectors.files_config:FilesSource",
        code="hive.ingest.connectors.files:FilesConnector",
    ),
    "web": _Kind(
        summary="A web site: from start pages or a sitemap, on one host, as its robots.txt allows.",
        source="hive.ingest.connectors.web_config:WebSource",
        code="hive.ingest.connectors.web:WebConnector",
    ),
}


def describe() -> list[KindDescription]:
    """All kinds, sorted by name."""
    return [
        KindDescription(kind=kind, summary=entry.summary, schema=_source(entry).model_json_schema())
        for kind, entry in sorted(_KINDS.items())
    ]


def connector(kind: str) -> "Connector":
    """The connector of a kind, imported now: only fetch children call this. Raises InvalidInput ("kind")."""
    return cast("Connector", _imported(_entry(kind).code)())


def validate(kind: str, config: Mapping[str, Json]) -> dict[str, Json]:
    """An owner's configuration, checked and in its stored form: plain JSON values, only what was said.

    Raises InvalidInput naming the field ("config.start"). Looks at no file and no host.
    """
    source = _source(_entry(kind))
    try:
        return source.model_validate(dict(config)).model_dump(mode="json", exclude_defaults=True)
    except ValidationError as error:
        raise _refusal(error) from None


def prepared(
    kind: str,
    config: Mapping[str, Json],
    *,
    roots: Sequence[Path],
    refused: Sequence[Path],
    web: WebConnector,
    max_document_bytes: int,
) -> dict[str, Json]:
    """A stored configuration with what hive adds to it: what a FetchRequest carries.

    ``roots``: folders that may be read; ``refused``: paths that never may (the state folder). An owner's
    configuration cannot set these: ``validate`` refuses the names.
    """
    given = validate(kind, config)
    if kind == "files":
        return {
            **given,
            "roots": [str(root) for root in roots],
            "refused": [str(path) for path in refused],
            "max_document_bytes": max_document_bytes,
        }
    return {
        "max_pages": web.max_pages,
        "max_depth": web.max_depth,
        **given,
        "user_agent": web.user_agent,
        "request_seconds": web.request_seconds,
        "pause_seconds": web.pause_seconds,
        "max_document_bytes": max_document_bytes,
    }


def _entry(kind: str) -> _Kind:
    try:
        return _KINDS[kind]
    except KeyError:
        raise InvalidInput(
            "kind", f"no connector is of the kind {kind!r}; there are {', '.join(_KINDS)}"
        ) from None


def _source(entry: _Kind) -> type[BaseModel]:
    return cast(type[BaseModel], _imported(entry.source))


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


def _refusal(error: ValidationError) -> InvalidInput:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if not field and ": " in message:  # a rule over several fields names the one to look at
        field, _, message = message.partition(": ")
    if first["type"] == "extra_forbidden":
        message = "is not a setting of this connector"
    return InvalidInput(f"config.{field}", message)
