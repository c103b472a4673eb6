"""Search: what a query means and the words it has, fused into one ranking, one hit per document.

Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009): each list gives a chunk ``1 / (60 + rank)``. Ranks
can be added where distances and text scores cannot. Fusing is done over chunks, and a document counts by its
best one, so that a long document does not win by its length.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from hive.context import Stores
from hive.errors import HiveError, InvalidInput
from hive.ids import TenantId
from hive.ingest.cleaning import clean
from hive.ingest.embedding import Embedder
from hive.ingest.index.port import Found, Index
from hive.ingest.index.postgres import PostgresIndex
from hive.ingest.index.snippet import snippet
from hive.logger import get_logger
from hive.vector import Vector

log = get_logger(__name__)

CANDIDATES: Final = 100
"""Chunks taken from each list."""
FUSION: Final = 60
"""The constant of the fusion: how little the first places count more than the next ones."""
LONGEST_QUERY: Final = 1000
MOST_HITS: Final = 100
QUERY_SECONDS: Final = 5.0
"""Deadline for embedding the query; after that, words alone decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchHit:
    """A document that answers, with the place in it that does. All of it is plain text.

    ``link`` leads to the place if the document has an anchor for it. ``score`` can be compared within one
    answer only: 1 is a chunk that is first in both lists.
    """

    title: str
    link: str
    snippet: str
    score: float
    heading: str
    document: str


class SearchHits(list[SearchHit]):
    """Hits, the best first. ``degraded``: the model server was away, only words were compared."""

    degraded: bool = False


class Search:
    """Answers queries over one index."""

    def __init__(self, stores: Stores, embedder: Embedder, index: Index) -> None:
        self._stores = stores
        self._embedder = embedder
        self._index = index

    async def run(self, tenant: TenantId, query: str, limit: int = 10) -> SearchHits:
        """The best hits of the tenant's documents. Raises InvalidInput for an empty or overlong query."""
        query = clean(query).strip()
        if not query:
            raise InvalidInput("query", "it is empty", remedy="say what to look for")
        if len(query) > LONGEST_QUERY:
            raise InvalidInput("query", f"it is longer than {LONGEST_QUERY} characters")
        if not 1 <= limit <= MOST_HITS:
            raise InvalidInput("limit", f"{limit} is not between 1 and {MOST_HITS}")
        vector = await self._vector(query)
        async with self._stores.transaction(tenant) as connection:
            settings = await self._index.settings(connection)
            lists = [
                await self._index.matching(connection, query, language=settings.language, limit=CANDIDATES)
            ]
            if vector is not None and vector.dimension == settings.dimension:
                lists.append(
                    await self._index.nearest(
                        connection, vector, dimension=settings.dimension, limit=CANDIDATES
                    )
                )
            best = fuse(lists)[:limit]
            rows = await connection.fetch(
                _SHOWN, [found.document for found, _ in best], [found.ordinal for found, _ in best]
            )
        shown = {(row["document"], row["ordinal"]): row for row in rows}
        hits = SearchHits(
            SearchHit(
                title=row["title"],
                link=_link(row["link"], row["anchor"]),
                snippet=snippet(row["body"], query),
                score=round(score, 4),
                heading=row["heading"],
                document=row["source_id"],
            )
            for found, score in best
            if (row := shown.get((found.document, found.ordinal))) is not None
        )
        hits.degraded = len(lists) == 1
        return hits

    async def _vector(self, query: str) -> Vector | None:
        try:
            return (await self._embedder.embed([query], timeout_seconds=QUERY_SECONDS))[0]
        except HiveError as error:
            log.warning("search.degraded", cause=error.code)
            return None


async def search(
    stores: Stores, embedder: Embedder, tenant: TenantId, query: str, limit: int = 10
) -> SearchHits:
    """See ``Search.run``; over the index in Postgres."""
    return await Search(stores, embedder, PostgresIndex()).run(tenant, query, limit)


def fuse(lists: Sequence[Sequence[Found]]) -> list[tuple[Found, float]]:
    """The best chunk of each document with its score from 0 to 1, the best first."""
    scores: dict[Found, float] = {}
    for ranking in lists:
        for rank, found in enumerate(ranking, start=1):
            scores[found] = scores.get(found, 0.0) + 1 / (FUSION + rank)
    best: dict[int, tuple[Found, float]] = {}
    for found, score in scores.items():
        if found.document not in best or score > best[found.document][1]:
            best[found.document] = (found, score)
    top = len(lists) / (FUSION + 1)
    ordered = sorted(best.values(), key=lambda entry: (-entry[1], entry[0].document))
    return [(found, score / top) for found, score in ordered]


def _link(link: str, anchor: str) -> str:
    return f"{link}#{anchor}" if anchor and "#" not in link else link


_SHOWN: Final = """
select c.document, c.ordinal, c.heading, c.anchor, c.body, d.title, d.link, d.source_id
from unnest($1::bigint[], $2::integer[]) as found (document, ordinal)
join chunk c on c.document = found.document and c.ordinal = found.ordinal
join document d on d.id = c.document
"""
