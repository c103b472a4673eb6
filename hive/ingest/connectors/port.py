"""What a connector is: code that reads a source and yields documents. It runs only in a fetch child.

A connector sees its own configuration, its credential and nothing else of hive: no database, no secrets.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import BaseModel

Json = Any  # whatever json.loads gives


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A run of text under one heading. ``heading`` is the path of headings ("Deploying › Shutdown")."""

    body: str
    heading: str = ""
    anchor: str = ""  # fragment that leads to it, without the '#'
    markdown: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDocument:
    """One document as the connector read it.

    ``source_id`` is unique in the tenant and stable ("file:///a/b.html", the page's URL). ``revision`` is a
    number of the source's own that only rises for this document, if it has one. ``source_state`` comes back
    from ``known`` in the next run: whatever tells this connector that nothing changed.
    """

    source_id: str
    title: str
    link: str
    sections: Sequence[Section]
    revision: int | None = None
    source_state: Mapping[str, Json] = field(default_factory=dict[str, Json])
    metadata: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFailure:
    """One document that could not be read; the others go on. Shown to people as a document error."""

    source_id: str
    link: str
    code: str  # too_large, binary, empty, unparsable, forbidden, not_found, redirect_loop, timeout, …
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Unchanged:
    """Documents seen and skipped, since nothing about them changed."""

    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Everything yielded before this need not be read again when ``state`` is given to the next ``items``."""

    state: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Nothing to yield, but alive and moving (a long listing, a polite wait): resets the stall limit."""

    note: str = ""


Item = SourceDocument | DocumentFailure | Unchanged | Checkpoint | Pause


class Known(Protocol):
    """Asks the database, through the parent, what is stored for these source ids: id → source_state."""

    async def __call__(self, source_ids: Sequence[str]) -> Mapping[str, Mapping[str, Json]]: ...


class Connector(Protocol):
    """A source. Registered by ``kind`` in ``hive.ingest.connectors.catalogue``."""

    kind: str
    Config: type[BaseModel]

    def items(
        self, config: BaseModel, credential: Mapping[str, Json] | None, checkpoint: Json | None, known: Known
    ) -> AsyncIterator[Item]:
        """Yield everything new since ``checkpoint`` (None: from the start), with checkpoints in between.

        Raises ``SourceError`` when the source as a whole cannot be read.
        """
        ...


class SourceError(Exception):
    """The source cannot be read at all: a folder that does not exist, a host that does not answer.

    ``code`` is a short stable word; ``transient`` says whether trying again later may help.
    """

    def __init__(
        self, code: str, message: str, *, transient: bool = False, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.transient = transient
        self.retry_after_seconds = retry_after_seconds
