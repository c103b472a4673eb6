"""The connectors by kind. Importing it costs little: parsers and HTTP clients come with a connector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from hive.errors import InvalidInput
from hive.ingest.connectors.files_config import FilesSource
from hive.ingest.connectors.port import Connector
from hive.ingest.connectors.web_config import WebSource
from hive.settings import WebConnector

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
    source: type[BaseModel]
    module: str
    name: str


_KINDS: Mapping[str, _Kind] = {
    "files": _Kind(
        summary="A folder on the host: html, md, txt, rst, pdf, docx.",
        source=FilesSource,
        module="hive.ingest.connectors.files",
        name="FilesConnector",
    ),
    "web": _Kind(
        summary="A web site: from start pages or a sitemap, on one host, as its robots.txt allows.",
        source=WebSource,
        module="hive.ingest.connectors.web",
        name="WebConnector",
    ),
}


def describe() -> list[KindDescription]:
    """All kinds, sorted by name."""
    return [
        KindDescription(kind=kind, summary=entry.summary, schema=entry.source.model_json_schema())
        for kind, entry in sorted(_KINDS.items())
    ]


def connector(kind: str) -> Connector:
    """The connector of a kind, imported now: only fetch children call this. Raises InvalidInput ("kind")."""
    entry = _entry(kind)
    return cast(Connector, getattr(import_module(entry.module), entry.name)())


def validate(kind: str, config: Mapping[str, Json]) -> dict[str, Json]:
    """An owner's configuration, checked and in its stored form: plain JSON values, only what was said.

    Raises InvalidInput naming the field ("config.start"). Looks at no file and no host.
    """
    source = _entry(kind).source
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


def _refusal(error: ValidationError) -> InvalidInput:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    field = ".".join(str(step) for step in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    if not field and ": " in message:  # a rule over several fields names the one to look at
        field, _, message = message.partition(": ")
    if first["type"] == "extra_forbidden":
        message = "is not a setting of this connector"
    return InvalidInput(f"config.{field}", message)
