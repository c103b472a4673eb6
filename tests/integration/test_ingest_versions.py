"""Which text of a document counts: the newest, whoever brings it and in whatever order it arrives."""

import anyio
import anyio.lowlevel
import pytest

from hive.ids import BatchId
from hive.ingest import documents
from hive.ingest.completion import AttemptStatus
from hive.ingest.fetching import ParsedDocument
from ingest_lab import FETCHING, PROCESSING, Lab, Source, document, pages

pytestmark = pytest.mark.timeout(120)


async def test_an_older_text_never_replaces_a_newer_one(lab: Lab) -> None:
    """The first run's batch is processed after the second run's: it arrives late, and changes nothing."""
    pair = await lab.pair()
    lab.source = Source(texts={"page": "the old text"}, ask=False)
    await lab.start(pair)
    await lab.run(FETCHING)
    late = (await lab.claim(PROCESSING))[0]
    # The first attempt ends without that batch, as it would if somebody failed its job.
    await lab.give_up(late)
    await lab.tick.run_once(lab.tenant, client=lab.client)
    lab.source.texts = {"page": "the new text"}
    await lab.ingest(pair)
    await lab.proof()
    assert await lab.ledger.replay([late.id]) == 1
    await lab.run(PROCESSING)
    await lab.proof()
    assert await lab.value("select count(*) from index_batch where status = 'done'") == 2


async def test_postgres_itself_refuses_an_older_version(lab: Lab) -> None:
    """The guard in the statement, for the moment in which two jobs insert the same new document."""
    newer, older = document("page", "newer"), document("page", "older")
    async with lab.database.transaction(lab.tenant) as connection:
        assert await documents.upsert(connection, [newer], BatchId(8)) != {}
        assert await documents.upsert(connection, [older], BatchId(7)) == {}
        assert await documents.upsert(connection, [older], BatchId(8)) != {}  # the same batch, run again
        stored = await documents.stored(connection, ["page"])
        await documents.confirm(connection, {stored["page"].id: [0, 5]})
        assert (await documents.stored(connection, ["page"]))["page"].version == [0, 8]


async def test_two_connectors_that_bring_one_document(lab: Lab) -> None:
    """The text that was read last is in force, whichever connector ran more often."""
    first, second = await lab.pair("first"), await lab.pair("second")
    for text in ("one", "two", "three"):
        lab.source = Source(texts={"page": text})
        await lab.ingest(first)
    lab.source = Source(texts={"page": "four, by the other"})
    view = await lab.attempts.get(lab.tenant, await lab.ingest(second))
    assert view.documents_new == 1
    await lab.proof()
    assert await lab.value("select count(*) from document_source") == 2
    # Removing one of them keeps the document, removing both takes it away.
    assert await lab.pairs.remove(lab.tenant, second, client=lab.client) == 0
    await lab.proof()
    assert await lab.pairs.remove(lab.tenant, first, client=lab.client) == 1
    await lab.proof({})
    for table in ("chunk", "index_attempt", "index_batch", "connector", "connector_credential_pair"):
        assert await lab.value(f"select count(*) from {table}") == 0, table


async def test_a_connector_that_lost_to_a_newer_text_reads_the_document_again(lab: Lab) -> None:
    slow, fast = await lab.pair("slow"), await lab.pair("fast")
    lab.source = Source(texts={"page": "read early"})
    await lab.start(slow)
    await lab.run(FETCHING)
    late = (await lab.claim(PROCESSING))[0]
    lab.source = Source(texts={"page": "read later"})
    await lab.start(fast)
    await lab.run_all()
    await lab.handle(late)
    await lab.proof()
    # Its own state was not remembered, so that its next run does not take the page for unchanged.
    lab.source = Source(texts={"page": "read early"})
    view = await lab.attempts.get(lab.tenant, await lab.ingest(slow))
    assert view.documents_new == 1
    await lab.proof()


async def test_a_source_with_revisions_of_its_own(lab: Lab) -> None:
    revisions = {"new": 7, "old": 6}

    def made(source_id: str, text: str) -> ParsedDocument:
        return document(source_id, text, revision=revisions[text])

    pair = await lab.pair()
    lab.source = Source(texts={"page": "new"}, make=made)
    await lab.ingest(pair)
    lab.source = Source(texts={"page": "old"}, make=made)
    view = await lab.attempts.get(lab.tenant, await lab.ingest(pair))
    assert (view.status, view.documents_new) == (AttemptStatus.COMPLETED, 0)
    assert await lab.value("select body from chunk order by ordinal limit 1") == "new, part 0."


async def test_batches_that_share_documents_do_not_deadlock(lab: Lab) -> None:
    pairs = [await lab.pair(f"pair {at}") for at in range(4)]
    texts = pages(24)
    for at, pair in enumerate(pairs):
        ids = list(texts)[at:] + list(texts)[:at]
        lab.source = Source(texts={key: texts[key] for key in (ids if at % 2 else ids[::-1])}, batch=24)
        await lab.start(pair)
        await lab.run(FETCHING)
    deliveries = await lab.claim(PROCESSING, limit=4)
    async with anyio.create_task_group() as group:
        for delivery in deliveries:
            group.start_soon(lab.handle, delivery)
    await lab.run_all()
    await lab.proof(texts)
    assert await lab.value("select count(*) from document_source") == 4 * 24
    assert await lab.value("select sum(documents_new) from index_batch") == 24


async def test_a_document_twice_in_one_batch(lab: Lab) -> None:
    def made(source_id: str, text: str) -> ParsedDocument:
        return document(source_id.split("#", maxsplit=1)[0], text)

    lab.source = Source(texts={"page#1": "first", "page#2": "last"}, make=made, ask=False)
    view = await lab.attempts.get(lab.tenant, await lab.ingest(await lab.pair()))
    assert (view.status, view.documents_new) == (AttemptStatus.COMPLETED, 1)
    assert await lab.value("select body from chunk order by ordinal limit 1") == "last, part 0."
