"""A run from its start to the index: real database, ledger and model server, and a scripted source."""

import anyio
import pytest

from hive.errors import Conflict, NotFound
from hive.ids import DEFAULT_TENANT, AttemptId, TenantId
from hive.ingest.completion import AttemptStatus
from hive.ingest.embedding import Embedder
from hive.ingest.fetching import FetchFailed
from hive.ingest.index.search import search
from hive.ingest.tasks import fetch_connector
from hive.settings import Fetch
from hive.store.postgres import Database
from hive.store.tenants import Tenants
from ingest_lab import FETCHING, PROCESSING, Lab, Source, pages

pytestmark = pytest.mark.timeout(60)


async def test_a_run_indexes_every_document_once(lab: Lab) -> None:
    lab.source = Source(texts=pages(5))
    pair = await lab.pair()
    attempt = await lab.ingest(pair)
    view = await lab.attempts.get(lab.tenant, attempt)
    assert view.status is AttemptStatus.COMPLETED
    assert (view.documents_new, view.documents_total) == (5, 5)
    assert (view.batches_done, view.batches_total) == (3, 3)
    assert view.error is None
    assert view.waiting_for is None
    assert view.connector == "pages"
    await lab.proof()


async def test_a_second_run_indexes_only_what_changed(lab: Lab) -> None:
    lab.source = Source(texts=pages(6))
    pair = await lab.pair()
    await lab.ingest(pair)
    second = await lab.attempts.get(lab.tenant, await lab.ingest(pair))
    assert (second.status, second.documents_new, second.documents_total) == (AttemptStatus.COMPLETED, 0, 6)
    lab.source.texts["page-003"] = "another text altogether"
    third = await lab.attempts.get(lab.tenant, await lab.ingest(pair))
    assert (third.status, third.documents_new, third.documents_total) == (AttemptStatus.COMPLETED, 1, 6)
    await lab.proof()


async def test_an_unchanged_text_is_not_embedded_again(lab: Lab, embedder: Embedder) -> None:
    # The source does not ask what is known and yields everything again: the content hash decides.
    lab.source = Source(texts=pages(4), ask=False)
    pair = await lab.pair()
    await lab.ingest(pair)
    await embedder.close()
    lab.services.embedder._url = "http://nowhere.invalid/"  # pyright: ignore[reportPrivateUsage]
    lab.services.embedder._socket_path = None  # pyright: ignore[reportPrivateUsage]
    second = await lab.attempts.get(lab.tenant, await lab.ingest(pair))
    assert (second.status, second.documents_new, second.documents_total) == (AttemptStatus.COMPLETED, 0, 4)
    await lab.proof()


async def test_two_simultaneous_starts_make_one_attempt(lab: Lab) -> None:
    pair = await lab.pair()
    started: list[AttemptId] = []

    async def start() -> None:
        started.append(await lab.start(pair))

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(start)
    assert len(set(started)) == 1
    assert await lab.value("select count(*) from index_attempt") == 1
    assert await lab.value("select count(*) from hive.job") == 1
    assert await lab.pairs.request_run(lab.tenant, pair, client=lab.client) == started[0]


async def test_what_a_start_is_refused(lab: Lab) -> None:
    pair = await lab.pair()
    await lab.pairs.pause(lab.tenant, pair)
    with pytest.raises(Conflict, match="paused"):
        await lab.pairs.request_run(lab.tenant, pair, client=lab.client)
    with pytest.raises(NotFound):
        await lab.start(type(pair)(pair + 1))
    with pytest.raises(NotFound):
        await lab.attempts.get(lab.tenant, AttemptId(1))


async def test_an_empty_source_completes(lab: Lab) -> None:
    attempt = await lab.ingest(await lab.pair())
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.documents_total, view.batches_total) == (AttemptStatus.COMPLETED, 0, 0)


async def test_documents_that_cannot_be_read_are_named(lab: Lab) -> None:
    texts = pages(5)
    lab.source = Source(texts=texts, broken={"page-001": "it is not a document"})
    view = await lab.attempts.get(lab.tenant, await lab.ingest(await lab.pair()))
    assert view.status is AttemptStatus.COMPLETED_WITH_ERRORS
    assert view.document_errors == 1
    assert view.error is not None
    assert "page-001" in view.error
    errors = await lab.attempts.errors(lab.tenant, view.id)
    assert [(error.code, error.summary) for error in errors] == [("unparsable", "it is not a document")]
    await lab.proof({key: text for key, text in texts.items() if key != "page-001"})


async def test_a_source_that_fails_for_good_fails_the_attempt_with_its_words(lab: Lab) -> None:
    lab.source = Source(texts=pages(6), fail_after=1)
    pair = await lab.pair()
    attempt = await lab.start(pair)
    await lab.run(FETCHING)
    # What was stored before is processed first: an attempt that has ended has no open work.
    view = await lab.attempts.get(lab.tenant, attempt)
    assert view.status is AttemptStatus.IN_PROGRESS
    assert view.error == "gone: the source is away"
    await lab.run(PROCESSING)
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.documents_new) == (AttemptStatus.FAILED, 2)
    assert await lab.value("select state from hive.job where task = 'fetch_connector'") == "completed"


async def test_a_source_that_fails_for_a_while_is_tried_again_from_its_checkpoint(lab: Lab) -> None:
    away = FetchFailed(code="timeout", summary="no answer", transient=True, retry_after_seconds=1)
    lab.source = Source(texts=pages(6), fail_after=1, failure=away)
    pair = await lab.pair()
    attempt = await lab.start(pair)
    await lab.run(FETCHING, most=1)
    assert (await lab.attempts.get(lab.tenant, attempt)).waiting_for == "the next try: no answer"
    lab.source.fail_after = None
    await lab.run_all()
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.documents_new, view.documents_total) == (AttemptStatus.COMPLETED, 6, 6)
    assert [run.checkpoint for run in lab.source.runs] == [None, {"at": 2}]
    await lab.proof()


async def test_a_source_that_stays_away_fails_the_attempt_in_the_end(lab: Lab) -> None:
    away = FetchFailed(code="timeout", summary="no answer", transient=True)
    lab.source = Source(texts=pages(6), fail_after=0, failure=away)
    attempt = await lab.ingest(await lab.pair())
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.error) == (AttemptStatus.FAILED, "timeout: no answer")
    assert len(lab.source.runs) == fetch_connector.options.retry.max_attempts


async def test_a_child_that_dies_too_often_fails_the_attempt_with_its_cause(lab: Lab) -> None:
    lab.source = Source(texts=pages(6), die_after=0)
    pair = await lab.pair()
    attempt = await lab.ingest(pair)
    assert (await lab.attempts.get(lab.tenant, attempt)).status is AttemptStatus.IN_PROGRESS
    await lab.tick.run_once(lab.tenant, client=lab.client)
    view = await lab.attempts.get(lab.tenant, attempt)
    assert view.status is AttemptStatus.FAILED
    assert view.error is not None
    assert "poison" in view.error
    assert "killed" in view.error


async def test_progress_gives_a_dying_child_new_lives(lab: Lab) -> None:
    lab.source = Source(texts=pages(10), die_after=1)
    attempt = await lab.ingest(await lab.pair())
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.documents_new) == (AttemptStatus.COMPLETED, 10)
    assert len(lab.source.runs) == 5  # four deaths, each after a batch: more than the three that are allowed
    await lab.proof()


async def test_a_job_asked_to_stop_hands_back_and_goes_on_later(lab: Lab) -> None:
    lab.source = Source(texts=pages(8))
    pair = await lab.pair()
    attempt = await lab.start(pair)
    delivery = (await lab.claim(FETCHING))[0]
    context = lab.context(delivery)

    async def stop(batch: int) -> None:
        if batch == 2:
            context.request_stop()
            await anyio.wait_all_tasks_blocked()

    lab.source.on_batch = stop
    await lab.handle(delivery, context)
    job = (await lab.rows("select state, attempt from hive.job where task = 'fetch_connector'"))[0]
    assert job["state"] == "pending"
    assert lab.source.closed == 1
    lab.source.on_batch = None
    await lab.run_all()
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.documents_new, view.documents_total) == (AttemptStatus.COMPLETED, 8, 8)
    checkpoints = [run.checkpoint for run in lab.source.runs]
    assert checkpoints[0] is None
    assert checkpoints[1] in ({"at": 4}, {"at": 6})
    await lab.proof()


async def test_a_crawl_waits_while_too_many_batches_are_unprocessed(lab: Lab) -> None:
    lab.services = type(lab.services)(
        **{name: getattr(lab.services, name) for name in lab.services.__slots__ if name != "settings"},
        settings=lab.services.settings.model_copy(update={"fetch": Fetch(unprocessed_batches=2)}),
    )
    lab.source = Source(texts=pages(10))
    pair = await lab.pair()
    attempt = await lab.start(pair)
    delivery = (await lab.claim(FETCHING))[0]
    most = 0
    async with anyio.create_task_group() as group:
        group.start_soon(lab.handle, delivery)
        with anyio.fail_after(30):
            while (view := await lab.attempts.get(lab.tenant, attempt)).status is not AttemptStatus.COMPLETED:
                waiting = view.batches_total - view.batches_done
                most = max(most, waiting)
                if view.waiting_for == "processing to catch up" and waiting == 2:
                    await lab.run(PROCESSING, most=1)
                elif await lab.value("select fetch_outcome from index_attempt"):
                    await lab.run(PROCESSING)
    assert most == 2
    assert lab.source.read == 10
    await lab.proof()


async def test_cancelling_stops_what_runs_and_what_waits(lab: Lab) -> None:
    lab.source = Source(texts=pages(8))
    pair = await lab.pair()
    attempt = await lab.start(pair)
    delivery = (await lab.claim(FETCHING))[0]

    async def cancel(batch: int) -> None:
        if batch == 2:
            await lab.attempts.cancel(lab.tenant, attempt, client=lab.client)

    lab.source.on_batch = cancel
    await lab.handle(delivery)
    view = await lab.attempts.get(lab.tenant, attempt)
    assert view.status is AttemptStatus.CANCELLED
    assert lab.source.read == 6  # the third batch was refused, and nothing was read after it
    states = await lab.rows("select task, state from hive.job where task = 'process_batch'")
    assert {row["state"] for row in states} == {"cancelled"}
    await lab.run_all()
    await lab.proof({})
    again = await lab.attempts.cancel(lab.tenant, attempt, client=lab.client)
    assert again.status is AttemptStatus.CANCELLED
    lab.source.on_batch = None
    done = await lab.ingest(pair)
    with pytest.raises(Conflict, match="has ended: completed"):
        await lab.attempts.cancel(lab.tenant, done, client=lab.client)


async def test_a_batch_of_a_cancelled_attempt_leaves_nothing(lab: Lab) -> None:
    lab.source = Source(texts=pages(2))
    pair = await lab.pair()
    attempt = await lab.start(pair)
    await lab.run(FETCHING)
    delivery = (await lab.claim(PROCESSING))[0]
    async with lab.database.transaction(lab.tenant) as connection:
        await connection.execute(
            "update index_attempt set status = 'cancelled', finished_at = now() where id = $1", attempt
        )
    await lab.handle(delivery)
    await lab.proof({})
    # The round that cancelling did not get to is made up for by the tick.
    await lab.tick.run_once(lab.tenant, client=lab.client)
    assert await lab.value("select count(*) from index_batch where payload is not null") == 0


async def test_two_tenants_never_see_each_other(database: Database, embedder: Embedder) -> None:
    other = TenantId("other")
    await Tenants(database).create(other)
    labs = [Lab(database, embedder), Lab(database, embedder, tenant=other)]
    for lab, text in zip(labs, ("honey from bees", "wine from grapes"), strict=True):
        lab.source = Source(texts={"same-page": text})
        await lab.ingest(await lab.pair("same name"))
    for lab, text in zip(labs, ("honey from bees", "wine from grapes"), strict=True):
        await lab.proof()
        hits = await search(database, embedder, lab.tenant, "honey wine bees grapes")
        assert [hit.snippet for hit in hits] == [f"{text}, part 0."]
        assert len(await lab.attempts.list(lab.tenant)) == 1
    assert labs[0].tenant == DEFAULT_TENANT
