"""The port of an index: where chunks are written, and how they are found again."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hive.store.connection import Connection
from hive.vector import Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSettings:
    """What a tenant's index was built with. ``language``: a Postgres text search configuration."""

    id: int
    model: str
    dimension: int
    language: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedChunk:
    """A chunk with its vector."""

    ordinal: int
    heading: str
    anchor: str
    body: str
    embedding: Vector


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedDocument:
    """A document as the index holds it: all of its chunks. ``document`` is the row's id."""

    document: int
    title: str
    chunks: Sequence[IndexedChunk]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A chunk that answers a query. A list of them is ordered, the best first."""

    document: int
    ordinal: int


class Index(Protocol):
    """The chunks of every tenant. The connection's search path says which tenant's."""

    async def settings(self, connection: Connection) -> IndexSettings:
        """What this tenant's index was built with."""
        ...

    async def replace(
        self, connection: Connection, documents: Sequence[IndexedDocument], *, language: str
    ) -> None:
        """Put the chunks of each document in the place of its old ones, inside the caller's transaction."""
        ...

    async def nearest(
        self, connection: Connection, vector: Vector, *, dimension: int, limit: int
    ) -> list[Found]:
        """The chunks whose vectors point most nearly the same way."""
        ...

    async def matching(self, connection: Connection, query: str, *, language: str, limit: int) -> list[Found]:
        """The chunks whose words answer: those with all of the query's words first, then those with some."""
        ...
