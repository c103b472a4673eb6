"""Search: what is found, in which order, and what happens when half of it is away."""

from pathlib import Path

import pytest

from hive.errors import InvalidInput
from hive.ingest.embedding import Embedder
from hive.ingest.fetching import Chunk, ParsedDocument
from hive.ingest.index.search import SearchHits, search
from hive.settings import Embedding
from hive.store.postgres import Database
from ingest_lab import Lab, Source

PAGES = {
    "asyncio-sync": "Synchronization Primitives|Semaphore|asyncio.Semaphore(value=1) guards a counter.",
    "threading": "Thread-based parallelism|Lock|A lock is held by one thread at a time.",
    "argparse": "argparse — Parser for command-line options|Example|The parser reads sys.argv.",
    "bees": "Keeping bees|Honey|<b>Honey</b> is made by bees from nectar & kept in wax.",
    "shutdown": "Operating|Deploying › Graceful shutdown|On SIGTERM work is finished, or handed back.",
}


def page(source_id: str, text: str) -> ParsedDocument:
    title, heading, body = text.split("|")
    return ParsedDocument(
        source_id=source_id,
        title=title,
        link=f"https://example.test/{source_id}.html",
        revision=None,
        content_hash=source_id.encode().hex().ljust(64, "0"),
        source_state={},
        metadata={},
        chunks=[
            Chunk(ordinal=0, heading="", anchor="", body=f"An introduction to {title}."),
            Chunk(ordinal=1, heading=heading, anchor="the-place", body=body),
        ],
    )


@pytest.fixture
async def lab(lab: Lab) -> Lab:
    lab.source = Source(texts=PAGES, make=page, ask=False)
    await lab.ingest(await lab.pair())
    return lab


async def find(lab: Lab, query: str, limit: int = 10) -> SearchHits:
    return await search(lab.database, lab.embedder, lab.tenant, query, limit)


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("asyncio semaphore", "asyncio-sync"),
        ("asyncio.Semaphore", "asyncio-sync"),  # Postgres alone takes it for a host name
        ("parse command line options", "argparse"),
        ("graceful shutdown", "shutdown"),
        ("where does honey come from", "bees"),  # in natural language: no chunk has all of its words
        ('"held by one thread"', "threading"),
        ("mutex for threads", "threading"),
        ("HONEY", "bees"),
    ],
)
async def test_the_right_page_comes_first(lab: Lab, query: str, first: str) -> None:
    hits = await find(lab, query)
    assert hits[0].document == first
    assert not hits.degraded


async def test_a_hit_leads_to_the_place(lab: Lab) -> None:
    hit = (await find(lab, "graceful shutdown"))[0]
    assert hit.link == "https://example.test/shutdown.html#the-place"
    assert hit.title == "Operating"
    assert hit.heading == "Deploying › Graceful shutdown"
    assert hit.snippet == "On SIGTERM work is finished, or handed back."
    assert 0 < hit.score <= 1


async def test_each_document_is_one_hit_and_the_limit_holds(lab: Lab) -> None:
    hits = await find(lab, "introduction to bees, threads, parsers")
    assert len({hit.document for hit in hits}) == len(hits) == len(PAGES)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(await find(lab, "introduction", 2)) == 2


async def test_text_stays_text(lab: Lab) -> None:
    """Nothing is marked up, and nothing is escaped twice: whoever shows it escapes it."""
    assert "<b>Honey</b> is made by bees from nectar & kept" in (await find(lab, "nectar"))[0].snippet


@pytest.mark.parametrize(
    "query",
    ["&", "'", "\\", "a & | ! b", "(((", "a:*", '"', "--", "; drop table chunk", "\x00bees", "🐝", "the"],
)
async def test_no_query_breaks_it(lab: Lab, query: str) -> None:
    assert isinstance(await find(lab, query), SearchHits)


@pytest.mark.parametrize("query", ["", "   ", "\x00", "x" * 1001])
async def test_a_query_that_asks_nothing_is_refused(lab: Lab, query: str) -> None:
    with pytest.raises(InvalidInput, match="query"):
        await find(lab, query)


@pytest.mark.parametrize("limit", [0, -1, 101])
async def test_a_limit_out_of_range_is_refused(lab: Lab, limit: int) -> None:
    with pytest.raises(InvalidInput, match="limit"):
        await find(lab, "bees", limit)


async def test_without_the_model_server_words_decide(lab: Lab) -> None:
    away = Embedder(Embedding(), socket_path=Path("/nonexistent/model.sock"))
    hits = await search(lab.database, away, lab.tenant, "graceful shutdown")
    await away.close()
    assert hits.degraded
    assert hits[0].document == "shutdown"


async def test_an_empty_index_has_no_hits(database: Database, embedder: Embedder) -> None:
    assert await find(Lab(database, embedder), "anything") == []


async def test_the_language_of_the_tenant_decides_which_words_are_one(
    database: Database, embedder: Embedder
) -> None:
    async with database.transaction(Lab(database, embedder).tenant) as connection:
        await connection.execute("update search_settings set language = 'german'")
    lab = Lab(database, embedder)
    lab.source = Source(texts={"haus": "Titel|Teil|Die Häuser stehen im Wald."}, make=page, ask=False)
    await lab.ingest(await lab.pair())
    away = Embedder(Embedding(), socket_path=Path("/nonexistent/model.sock"))
    assert [hit.document for hit in await search(lab.database, away, lab.tenant, "Haus")] == ["haus"]
    await away.close()
