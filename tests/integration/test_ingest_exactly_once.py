"""Death, delay and rivalry at every point of a run: nothing is lost, nothing is there twice."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from hive.broker.port import Verdict
from hive.errors import LeaseLost
from hive.ids import BatchId
from hive.ingest import batches
from hive.ingest.completion import AttemptStatus, complete_if_finished
from hive.ingest.embedding import Embedder
from hive.settings import Embedding
from hive.store.connection import Connection
from ingest_lab import FETCHING, PROCESSING, Lab, Source, crash_at, pages

pytestmark = pytest.mark.timeout(120)


async def test_a_fetch_that_dies_anywhere_loses_and_doubles_nothing(lab: Lab) -> None:
    """Once for every await of the handler: die there, start again, look at the tables."""
    pair = await lab.pair()
    step = 0
    while True:
        step += 1
        lab.source = Source(texts=pages(5, f"round {step}"))
        attempt = await lab.start(pair)
        delivery = (await lab.claim(FETCHING))[0]
        await lab.ledger.mark_started([delivery])
        context = lab.context(delivery)
        died = await crash_at(step, lab.outcome(delivery, context))
        await lab.die()
        await lab.run_all()
        view = await lab.attempts.get(lab.tenant, attempt)
        assert (view.status, view.documents_new, view.documents_total) == (AttemptStatus.COMPLETED, 5, 5), (
            step
        )
        await lab.proof()
        if not died:
            break
    assert step > 30  # it did die in many places


async def test_a_batch_that_dies_anywhere_is_indexed_once(lab: Lab) -> None:
    pair = await lab.pair()
    step = 0
    while True:
        step += 1
        lab.source = Source(texts=pages(2, f"round {step}"))
        attempt = await lab.start(pair)
        await lab.run(FETCHING)
        delivery = (await lab.claim(PROCESSING))[0]
        await lab.ledger.mark_started([delivery])
        died = await crash_at(step, lab.outcome(delivery, lab.context(delivery)))
        await lab.die()
        await lab.run_all()
        view = await lab.attempts.get(lab.tenant, attempt)
        assert (view.status, view.documents_new) == (AttemptStatus.COMPLETED, 2), step
        await lab.proof()
        if not died:
            break
    assert step > 20


async def test_a_stale_fetch_job_writes_nothing(lab: Lab) -> None:
    lab.source = Source(texts=pages(6))
    pair = await lab.pair()
    attempt = await lab.start(pair)
    first = (await lab.claim(FETCHING))[0]
    reached, go_on = anyio.Event(), anyio.Event()
    frozen = True

    async def freeze(batch: int) -> None:
        if frozen and batch == 1:
            reached.set()
            await go_on.wait()

    lab.source.on_batch = freeze
    refused: list[BaseException] = []

    async def stale() -> None:
        try:
            await lab.outcome(first, lab.context(first))
        except LeaseLost as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(stale)
        await reached.wait()
        frozen = False
        # Its lease ends, another process takes the job over and finishes it.
        await lab.die()
        await lab.run_all()
        before = await lab.rows("select * from index_attempt")
        stored = await lab.rows("select id, number, status from index_batch order by id")
        go_on.set()
    assert len(refused) == 1
    assert await lab.rows("select * from index_attempt") == before
    assert await lab.rows("select id, number, status from index_batch order by id") == stored
    assert (await lab.attempts.get(lab.tenant, attempt)).documents_total == 6
    await lab.proof()


async def test_a_stale_fetch_job_is_refused_while_the_new_one_runs(lab: Lab) -> None:
    lab.source = Source(texts=pages(4))
    pair = await lab.pair()
    await lab.start(pair)
    first = (await lab.claim(FETCHING))[0]
    await lab.die()
    await lab.claim(FETCHING)
    with pytest.raises(LeaseLost):
        await lab.outcome(first, lab.context(first))
    assert lab.source.runs == []
    assert await lab.value("select status from index_attempt") == "not_started"


async def test_a_process_job_that_runs_twice_has_one_effect(lab: Lab) -> None:
    lab.source = Source(texts=pages(2))
    pair = await lab.pair()
    attempt = await lab.start(pair)
    await lab.run(FETCHING)
    first = (await lab.claim(PROCESSING))[0]
    await lab.die()
    second = (await lab.claim(PROCESSING))[0]
    assert (first.id, first.fence < second.fence) == (second.id, True)
    await lab.handle(second)
    assert await lab.handle(first) is Verdict.STALE
    # A replay after it was done (the row is claimed again by hand) finds nothing to do either.
    async with lab.database.transaction() as connection:
        await connection.execute(
            "update hive.job set state = 'pending', finished_at = null where id = $1", first.id
        )
    await lab.run(PROCESSING)
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.documents_new, view.batches_done) == (AttemptStatus.COMPLETED, 2, 1)
    await lab.proof()


async def test_of_two_last_batches_the_one_that_comes_second_sees_the_first(lab: Lab) -> None:
    """Step by step: both have written, neither has committed, both ask whether the attempt is finished."""
    lab.source = Source(texts=pages(4))
    attempt = await lab.start(await lab.pair())
    await lab.run(FETCHING)
    first, second = [BatchId(row["id"]) for row in await lab.rows("select id from index_batch order by id")]
    answers: dict[BatchId, AttemptStatus | None] = {}

    async def finish(batch: BatchId, connection: Connection) -> None:
        await batches.set_done(connection, batch, documents_new=2, chunks=4)
        answers[batch] = await complete_if_finished(connection, attempt)

    async def finish_second() -> None:
        async with lab.database.transaction(lab.tenant) as connection:
            await finish(second, connection)

    async with anyio.create_task_group() as group, lab.database.transaction(lab.tenant) as connection:
        await finish(first, connection)
        group.start_soon(finish_second)
        # The second one either waits for our lock or (wrongly) has its answer already.
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
        with anyio.fail_after(10):
            while second not in answers and not await lab.value(waits):
                await anyio.lowlevel.checkpoint()
    assert answers == {first: None, second: AttemptStatus.COMPLETED}
    assert (await lab.attempts.get(lab.tenant, attempt)).status is AttemptStatus.COMPLETED


async def test_last_batches_that_end_at_once_complete_the_attempt_once(lab: Lab) -> None:
    lab.source = Source(texts=pages(16))
    pair = await lab.pair()
    for round in range(5):
        lab.source.texts = pages(16, f"round {round}")
        attempt = await lab.start(pair)
        await lab.run(FETCHING)
        deliveries = await lab.claim(PROCESSING, limit=8)
        assert len(deliveries) == 8
        async with anyio.create_task_group() as group:
            for delivery in deliveries:
                group.start_soon(lab.handle, delivery)
        view = await lab.attempts.get(lab.tenant, attempt)
        assert (view.status, view.batches_done, view.documents_new) == (AttemptStatus.COMPLETED, 8, 16)
    await lab.proof()


async def test_the_fetch_and_the_last_batch_ending_at_once_complete_the_attempt(lab: Lab) -> None:
    pair = await lab.pair()
    for round in range(5):
        lab.source = Source(texts=pages(2, f"round {round}"))
        attempt = await lab.start(pair)
        fetching = (await lab.claim(FETCHING))[0]
        stored, go_on = anyio.Event(), anyio.Event()

        async def hold(batch: int, stored: anyio.Event = stored, go_on: anyio.Event = go_on) -> None:
            stored.set()
            await go_on.wait()

        lab.source.on_batch = hold
        async with anyio.create_task_group() as group:
            group.start_soon(lab.handle, fetching)
            await stored.wait()
            processing = (await lab.claim(PROCESSING))[0]
            group.start_soon(lab.handle, processing)
            go_on.set()
        view = await lab.attempts.get(lab.tenant, attempt)
        assert view.status is AttemptStatus.COMPLETED
    await lab.proof()


async def test_a_replayed_batch_makes_up_for_its_failure(lab: Lab) -> None:
    pair = await lab.pair()
    lab.source = Source(texts=pages(4))
    attempt = await lab.start(pair)
    await lab.run(FETCHING)
    unlucky = (await lab.claim(PROCESSING))[0]
    await lab.give_up(unlucky)
    await lab.run(PROCESSING)
    await lab.tick.run_once(lab.tenant, client=lab.client)
    view = await lab.attempts.get(lab.tenant, attempt)
    assert view.status is AttemptStatus.COMPLETED_WITH_ERRORS
    assert (view.batches_done, view.batches_failed, view.documents_new) == (1, 1, 2)
    assert view.error == "1 of 2 batches failed, the first: it was given up"
    await lab.ledger.replay([unlucky.id])
    await lab.run(PROCESSING)
    view = await lab.attempts.get(lab.tenant, attempt)
    # What has ended stays as it ended; the documents are there all the same.
    assert (view.status, view.batches_done) == (AttemptStatus.COMPLETED_WITH_ERRORS, 2)
    await lab.proof()


async def test_an_attempt_of_which_every_batch_failed_has_failed(lab: Lab) -> None:
    lab.source = Source(texts=pages(2))
    attempt = await lab.start(await lab.pair())
    await lab.run(FETCHING)
    await lab.give_up((await lab.claim(PROCESSING))[0])
    await lab.tick.run_once(lab.tenant, client=lab.client)
    assert (await lab.attempts.get(lab.tenant, attempt)).status is AttemptStatus.FAILED


async def test_documents_that_no_database_holds(lab: Lab) -> None:
    texts = {"nul": "a\x00b", "surrogate": "a\ud800b", "long" * 1000: "its id is too long", "good": "good"}
    lab.source = Source(texts=texts, batch=10, ask=False)
    view = await lab.attempts.get(lab.tenant, await lab.ingest(await lab.pair()))
    assert (view.status, view.documents_new) == (AttemptStatus.COMPLETED_WITH_ERRORS, 3)
    assert [error.code for error in await lab.attempts.errors(lab.tenant, view.id)] == ["unusable_id"]
    bodies = await lab.rows("select body from chunk where ordinal = 0 order by body")
    assert [row["body"] for row in bodies] == ["a?b, part 0.", "ab, part 0.", "good, part 0."]


async def test_an_embedder_that_is_away_loses_nothing(lab: Lab, tmp_path: Path) -> None:
    left = tmp_path / "model.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(left))  # its file outlives it; without one, a server that starts is waited for
    gone = Embedder(Embedding(), socket_path=left)
    away = Lab(lab.database, gone)
    away.source = Source(texts=pages(4))
    pair = await away.pair()
    attempt = await away.start(pair)
    await away.run(FETCHING)
    for _ in range(6):
        await away.run(PROCESSING, most=2)
    await gone.close()
    view = await away.attempts.get(away.tenant, attempt)
    assert view.status is AttemptStatus.IN_PROGRESS
    assert view.waiting_for is not None
    assert "the model server does not answer" in view.waiting_for
    assert view.waiting_for.startswith("the next try of ")
    lab.source = away.source
    await lab.run_all()
    view = await lab.attempts.get(lab.tenant, attempt)
    assert (view.status, view.documents_new) == (AttemptStatus.COMPLETED, 4)
    await lab.proof()


async def test_no_database_session_is_held_while_embedding(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    embed = lab.embedder.embed

    async def watched(texts: Sequence[str], **options: Any) -> Any:
        pool = lab.database._pool  # pyright: ignore[reportPrivateUsage]
        assert pool is not None
        assert pool.pool.get_size() - pool.pool.get_idle_size() == 0
        return await embed(texts, **options)

    monkeypatch.setattr(lab.embedder, "embed", watched)
    lab.source = Source(texts=pages(2))
    view = await lab.attempts.get(lab.tenant, await lab.ingest(await lab.pair()))
    assert view.status is AttemptStatus.COMPLETED


async def test_a_lost_or_cancelled_job_is_put_right_by_the_tick(lab: Lab) -> None:
    pair = await lab.pair()
    # The fetch job's row is gone: the attempt was interrupted, and the next one goes on from its checkpoint.
    lab.source = Source(texts=pages(6), fail_after=1)
    lab.source.failure = type(lab.source.failure)(code="away", summary="away", transient=True)
    interrupted = await lab.start(pair)
    await lab.run(FETCHING, most=1)
    await lab.run(PROCESSING)
    async with lab.database.transaction() as connection:
        await connection.execute("delete from hive.job where task = 'fetch_connector'")
    lab.source.fail_after = None
    started = await lab.tick.run_once(lab.tenant, client=lab.client)
    assert (await lab.attempts.get(lab.tenant, interrupted)).status is AttemptStatus.INTERRUPTED
    assert started == 1
    await lab.run_all()
    assert lab.source.runs[-1].checkpoint == {"at": 2}
    await lab.proof()
    # A batch whose job is gone gets another one.
    lab.source.texts = pages(2, "changed")
    attempt = await lab.start(pair)
    await lab.run(FETCHING)
    async with lab.database.transaction() as connection:
        await connection.execute("delete from hive.job where task = 'process_batch' and state = 'pending'")
    await lab.tick.run_once(lab.tenant, client=lab.client)
    await lab.run_all()
    assert (await lab.attempts.get(lab.tenant, attempt)).status is AttemptStatus.COMPLETED
    # A fetch job that an operator cancelled ends its attempt.
    attempt = await lab.start(pair)
    job = await lab.value("select job from index_attempt where id = $1", attempt)
    await lab.ledger.cancel([job])
    await lab.tick.run_once(lab.tenant, client=lab.client)
    assert (await lab.attempts.get(lab.tenant, attempt)).status is AttemptStatus.CANCELLED
