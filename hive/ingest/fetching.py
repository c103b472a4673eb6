"""The port between the fetch job and the child that runs the connector, and the values that cross it.

    parent ── FetchRequest ─▶ child
    parent ◀─ BatchReady | CheckpointReached | Question | Progressed | FetchFailed | FetchDone ── child
    parent ── answer(Question) ─▶ child

``pools.fetch`` implements it; ``hive.ingest`` uses it; the supervisor brings the two together.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from hive.outcomes import ExitDetail

Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of a document, ready to be embedded."""

    ordinal: int
    heading: str
    anchor: str
    body: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedDocument:
    """A document, parsed and split in the child. ``content_hash``: SHA-256 hex over what gets indexed."""

    source_id: str
    title: str
    link: str
    revision: int | None
    content_hash: str
    source_state: Mapping[str, Json]
    metadata: Mapping[str, str]
    chunks: Sequence[Chunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchRequest:
    """What a child is told: one connector, its configuration and credential, where to go on, its sizes."""

    kind: str
    config: Mapping[str, Json]
    credential: Mapping[str, Json] | None
    checkpoint: Json | None
    batch_documents: int
    batch_bytes: int
    max_document_bytes: int
    chunk_characters: int
    chunk_overlap_characters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReady:
    """Documents, the failures before them, and the connector's checkpoint after them.

    Storing all of it in one transaction makes going on from ``checkpoint`` lose and double nothing.
    ``unchanged``: documents skipped since the previous batch or checkpoint.
    """

    documents: Sequence[ParsedDocument]
    failures: Sequence["DocumentFailed"]
    checkpoint: Json | None
    unchanged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointReached:
    """A checkpoint with no documents since the last one. ``failures`` and ``unchanged`` as in BatchReady."""

    checkpoint: Json
    failures: Sequence["DocumentFailed"]
    unchanged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The child asks what is stored for these source ids. Answer with ``session.answer``."""

    source_ids: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progressed:
    """The child is alive and moving, with nothing to store."""

    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentFailed:
    """One document that could not be read."""

    source_id: str
    link: str
    code: str
    summary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchFailed:
    """The source as a whole could not be read. The last frame of its session."""

    code: str
    summary: str
    transient: bool
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchDone:
    """The connector has yielded everything (``complete``), or stopped at a checkpoint as asked."""

    complete: bool = True


Frame = BatchReady | CheckpointReached | Question | Progressed | FetchFailed | FetchDone


class ChildDied(Exception):
    """The child ended without saying that it was done. Charged to the job's crash budget."""

    def __init__(self, detail: ExitDetail, summary: str) -> None:
        super().__init__(summary)
        self.detail = detail
        self.summary = summary


class FetchSession(Protocol):
    """A running child."""

    def frames(self) -> AsyncIterator[Frame]:
        """Frames until FetchDone or FetchFailed. Raises ChildDied when the child ends in any other way.

        Not reading further is back-pressure: the child waits. Time in which the parent does not read does not
        count as a stall.
        """
        ...

    async def answer(self, known: Mapping[str, Mapping[str, Json]]) -> None:
        """Answer the last Question: source id → source_state, only for ids that are stored."""
        ...

    def stop_soon(self) -> None:
        """Ask the child to end at its next checkpoint (its frames go on until FetchDone(complete=False))."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchLimits:
    """What ends a child: bytes of memory, seconds without a frame, seconds in all."""

    memory_bytes: int
    stall_seconds: float
    wall_seconds: float


class FetchRunner(Protocol):
    """Starts fetch children."""

    def open(self, request: FetchRequest, limits: FetchLimits) -> AbstractAsyncContextManager[FetchSession]:
        """Start a child; leaving the context ends it, and its whole process group, whatever it is doing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """What ``index_batch.payload`` holds, compressed."""

    documents: Sequence[ParsedDocument] = field(default_factory=tuple[ParsedDocument, ...])
