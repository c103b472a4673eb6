"""The index in Postgres: pgvector for meaning, a tsvector for words, in one table per tenant.

Words are read after dotted and slashed names were taken apart: Postgres takes ``asyncio.Semaphore`` for a
host name and ``os/path`` for a file, one word each, and would find neither by its parts.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from hive.errors import NotFound
from hive.ingest.index.port import Found, IndexedChunk, IndexedDocument, IndexSettings
from hive.logger import get_logger
from hive.store.connection import Connection
from hive.vector import Vector

log = get_logger(__name__)

EXACT_CHUNKS: Final = 10_000
"""Up to here an exact scan is fast (a few ms), and an index would only cost: files, memory, slower writes."""
INDEX_NAME: Final = "chunk_embedding"
STATEMENT_BYTES: Final = 128 * 1024
"""Text and vectors in one statement: encoding and sending it takes the loop about a millisecond."""


class PostgresIndex:
    """Implements ``Index``."""

    async def settings(self, connection: Connection) -> IndexSettings:
        row = await connection.fetchrow(
            "select id, model, dimension, language from search_settings where state = 'present'"
        )
        if row is None:
            raise NotFound(
                "this tenant has no search settings", remedy="create the tenant anew, or restore it"
            )
        return IndexSettings(
            id=row["id"], model=row["model"], dimension=row["dimension"], language=row["language"]
        )

    async def replace(
        self, connection: Connection, documents: Sequence[IndexedDocument], *, language: str
    ) -> None:
        await connection.execute(
            "delete from chunk where document = any($1::bigint[])", [entry.document for entry in documents]
        )
        for part in _parts(documents):
            await connection.execute(
                _INSERT,
                language,
                [document.document for document, _ in part],
                [document.title for document, _ in part],
                [chunk.ordinal for _, chunk in part],
                [chunk.heading for _, chunk in part],
                [chunk.anchor for _, chunk in part],
                [chunk.body for _, chunk in part],
                [chunk.embedding for _, chunk in part],
            )

    async def nearest(
        self, connection: Connection, vector: Vector, *, dimension: int, limit: int
    ) -> list[Found]:
        # How many the vector index, if there is one, keeps in view: it gives no more than that.
        await connection.execute("select set_config('hnsw.ef_search', $1, true)", str(min(limit, 1000)))
        distance = _DISTANCE.format(dimension=int(dimension))
        rows = await connection.fetch(
            f"select document, ordinal from chunk order by {distance} limit $2", vector, limit
        )
        return [Found(document=row["document"], ordinal=row["ordinal"]) for row in rows]

    async def matching(self, connection: Connection, query: str, *, language: str, limit: int) -> list[Found]:
        found = await self._ranked(connection, _ALL_WORDS, query, language, limit)
        if len(found) < limit:
            # Questions in natural language hold words that no chunk has all of.
            known = set(found)
            some = await self._ranked(connection, _SOME_WORDS, query, language, limit)
            found += [entry for entry in some if entry not in known]
        return found[:limit]

    async def _ranked(
        self, connection: Connection, statement: str, query: str, language: str, limit: int
    ) -> list[Found]:
        rows = await connection.fetch(statement, language, query, limit)
        return [Found(document=row["document"], ordinal=row["ordinal"]) for row in rows]

    async def ensure_vector_index(self, connection: Connection) -> bool:
        """Build the vector index of a tenant that has outgrown exact search; returns whether it was built.

        It blocks that tenant's indexing (not its searches) while it is built, once in the tenant's life.
        """
        if await connection.fetchval("select to_regclass($1) is not null", INDEX_NAME):
            return False
        chunks = await connection.fetchval(
            "select count(*) from (select from chunk limit $1) as counted", EXACT_CHUNKS + 1
        )
        if chunks <= EXACT_CHUNKS:
            return False
        dimension = (await self.settings(connection)).dimension
        if dimension > 2000:  # pgvector's limit for a vector index
            return False
        await connection.execute(
            f"create index if not exists {INDEX_NAME} on chunk using hnsw "
            f"((embedding::hive_ext.vector({dimension})) hive_ext.vector_cosine_ops)",
            timeout=3600,
        )
        log.info("index.vector_index_built", dimension=dimension)
        return True


# The same expression as the index has, or it would not be used.
_DISTANCE: Final = (
    "(embedding::hive_ext.vector({dimension})) operator(hive_ext.<=>) $1::hive_ext.vector({dimension})"
)

_APART: Final = r"regexp_replace({0}, '(?<=[[:alpha:]_])[./](?=[[:alpha:]_])', ' ', 'g')"

_INSERT: Final = f"""
insert into chunk (document, ordinal, heading, anchor, body, embedding, terms)
select document, ordinal, heading, anchor, body, embedding,
       setweight(to_tsvector($1::text::regconfig, {_APART.format("title")}), 'A')
       || setweight(to_tsvector($1::text::regconfig, {_APART.format("heading")}), 'B')
       || setweight(to_tsvector($1::text::regconfig, {_APART.format("body")}), 'D')
from unnest($2::bigint[], $3::text[], $4::integer[], $5::text[], $6::text[], $7::text[],
            $8::hive_ext.vector[])
     as added (document, title, ordinal, heading, anchor, body, embedding)
"""

_ALL_WORDS: Final = f"""
select document, ordinal
from chunk, websearch_to_tsquery($1::text::regconfig, {_APART.format("$2::text")}) as query
where terms @@ query
order by ts_rank_cd(terms, query, 1) desc, document, ordinal
limit $3
"""

# Every word of the query on its own, joined by "or"; ranked by how many of them a chunk has, then by rank.
_SOME_WORDS: Final = f"""
with words as (
    select array_agg(quote_literal(lexeme)::tsquery) as each,
           string_agg(quote_literal(lexeme), ' | ')::tsquery as any_of
    from unnest(to_tsvector($1::text::regconfig, {_APART.format("$2::text")}))
)
select document, ordinal
from chunk, words
where terms @@ words.any_of
order by (select count(*) from unnest(words.each) as word where terms @@ word) desc,
         ts_rank_cd(terms, words.any_of, 1) desc, document, ordinal
limit $3
"""


def _parts(
    documents: Sequence[IndexedDocument],
) -> Iterator[list[tuple[IndexedDocument, IndexedChunk]]]:
    """The chunks in order, in parts of about STATEMENT_BYTES, each beside its document."""
    part: list[tuple[IndexedDocument, IndexedChunk]] = []
    size = 0
    for document in documents:
        for chunk in document.chunks:
            part.append((document, chunk))
            size += len(document.title) + len(chunk.heading) + len(chunk.body) + len(chunk.embedding.packed)
            if size >= STATEMENT_BYTES:
                yield part
                part, size = [], 0
    if part:
        yield part
