"""Connectors as rows: adding, pausing, removing, and the tick that runs them when they are due."""

import pytest

from hive.errors import Conflict, InvalidInput, NotFound
from hive.ids import AttemptId, PairId
from hive.ingest.completion import AttemptStatus
from hive.ingest.index.postgres import PostgresIndex
from hive.ingest.reconciliation import drop_ended
from ingest_lab import FETCHING, PROCESSING, Lab, Source

START = ["https://example.test/"]


async def tick(lab: Lab) -> int:
    return await lab.tick.run_once(lab.tenant, client=lab.client)


async def end(lab: Lab, attempt: AttemptId, status: str, *, ago: float = 0) -> None:
    """End an attempt by hand, ``ago`` seconds ago, as if it had begun a minute before that."""
    async with lab.database.transaction(lab.tenant) as connection:
        await connection.execute(
            "update index_attempt set status = $2, finished_at = now() - make_interval(secs => $3), "
            "created_at = least(created_at, now() - make_interval(secs => $3 + 60)) where id = $1",
            attempt,
            status,
            float(ago),
        )
        await connection.execute("update hive.job set state = 'completed', finished_at = now()")
        # Nobody has asked since then.
        await connection.execute("update connector_credential_pair set run_requested_at = '2000-01-01'")


async def newest(lab: Lab) -> AttemptId:
    return (await lab.attempts.list(lab.tenant, limit=1))[0].id


async def test_a_connector_is_kept_as_it_was_given(lab: Lab) -> None:
    pair = await lab.pairs.add(
        lab.tenant,
        kind="web",
        name="  a site ",
        config={"start": START},
        credential={"token": "s3cret"},
        refresh_seconds=60,
    )
    assert (pair.name, pair.kind, pair.state, pair.refresh_seconds) == ("a site", "web", "active", 60)
    assert pair.has_credential
    assert "s3cret" not in repr(pair)
    assert pair.config == {"start": START}
    assert await lab.pairs.by_name(lab.tenant, "a site") == pair
    assert list(await lab.pairs.list(lab.tenant)) == [pair]
    assert b"s3cret" not in await lab.value("select sealed from credential")
    source = await lab.pairs.source(lab.tenant, pair.id)
    assert source.credential == {"token": "s3cret"}


async def test_what_is_refused_by_name(lab: Lab) -> None:
    await lab.pair("taken")
    with pytest.raises(Conflict, match="'taken' exists already"):
        await lab.pair("taken")
    assert await lab.value("select count(*) from connector") == 1  # the refused one left nothing
    for name in ("", "   ", "x" * 200, "a\nb", "a\x00b"):
        with pytest.raises(InvalidInput, match="name"):
            await lab.pair(name)
    with pytest.raises(InvalidInput, match="refresh_seconds"):
        await lab.pair("other", refresh_seconds=-1)
    with pytest.raises(InvalidInput, match="kind"):
        await lab.pairs.add(lab.tenant, kind="nosuch", name="n", config={})
    with pytest.raises(InvalidInput, match="config"):
        await lab.pairs.add(lab.tenant, kind="web", name="n", config={"start": START, "colour": "red"})
    for call in (lab.pairs.get, lab.pairs.pause, lab.pairs.resume):
        with pytest.raises(NotFound):
            await call(lab.tenant, PairId(99))
    with pytest.raises(NotFound):
        await lab.pairs.by_name(lab.tenant, "nobody")
    with pytest.raises(NotFound):
        await lab.pairs.remove(lab.tenant, PairId(99), client=lab.client)
    with pytest.raises(NotFound):
        await lab.pairs.request_run(lab.tenant, PairId(99), client=lab.client)


async def test_the_first_run_starts_with_the_next_tick(lab: Lab) -> None:
    await lab.pair(refresh_seconds=0)
    assert await tick(lab) == 1
    assert await tick(lab) == 0  # it is active
    await end(lab, await newest(lab), "completed", ago=86400)
    assert await tick(lab) == 0  # 0: only when asked


@pytest.mark.parametrize(
    ("status", "ago", "due"),
    [
        ("completed", 599, False),
        ("completed", 601, True),
        ("completed_with_errors", 601, True),
        ("cancelled", 601, True),
        ("cancelled", 5, False),
        ("failed", 599, False),
        ("failed", 601, True),
        ("interrupted", 0, True),
    ],
)
async def test_when_the_next_run_is_due(lab: Lab, status: str, ago: int, due: bool) -> None:
    await lab.pair(refresh_seconds=600)
    await tick(lab)
    await end(lab, await newest(lab), status, ago=ago)
    assert await tick(lab) == due


async def test_failures_in_a_row_make_the_wait_longer(lab: Lab) -> None:
    await lab.pair(refresh_seconds=30)
    await tick(lab)
    for wait in (60, 120, 240, 480):
        await end(lab, await newest(lab), "failed", ago=wait - 1)
        assert await tick(lab) == 0
        await end(lab, await newest(lab), "failed", ago=wait + 1)
        assert await tick(lab) == 1
    await end(lab, await newest(lab), "completed", ago=31)
    assert await tick(lab) == 1
    await end(lab, await newest(lab), "failed", ago=61)  # counted anew
    assert await tick(lab) == 1


async def test_interruptions_in_a_row_do_not_turn_into_a_storm(lab: Lab) -> None:
    await lab.pair(refresh_seconds=600)
    await tick(lab)
    await end(lab, await newest(lab), "interrupted")
    assert await tick(lab) == 1
    await end(lab, await newest(lab), "interrupted")
    assert await tick(lab) == 0
    await end(lab, await newest(lab), "interrupted", ago=121)
    assert await tick(lab) == 1


async def test_a_paused_connector_is_not_due(lab: Lab) -> None:
    pair = await lab.pair()
    assert (await lab.pairs.pause(lab.tenant, pair)).state == "paused"
    assert await tick(lab) == 0
    assert (await lab.pairs.resume(lab.tenant, pair)).state == "active"
    assert await tick(lab) == 1


async def test_removing_takes_everything_with_it_while_jobs_run(lab: Lab) -> None:
    lab.source = Source(texts={f"page-{at:03}": f"text {at}" for at in range(500)}, batch=50)
    pair = await lab.pair()
    attempt = await lab.start(pair)
    await lab.run(FETCHING)
    await lab.run(PROCESSING, most=8)
    running = (await lab.claim(PROCESSING))[0]
    assert await lab.pairs.remove(lab.tenant, pair, client=lab.client) == 400
    await lab.handle(running)
    await lab.run_all()
    tables = ("document", "chunk", "document_source", "index_attempt", "index_batch", "index_error")
    for table in (*tables, "connector", "credential", "connector_credential_pair"):
        assert await lab.value(f"select count(*) from {table}") == 0, table
    assert await lab.value("select count(*) from hive.job where state not in ('completed', 'cancelled')") == 0
    with pytest.raises(NotFound):
        await lab.attempts.get(lab.tenant, attempt)
    await lab.pair()  # the name is free again


async def test_a_removal_that_was_cut_off_is_finished_by_the_tick(lab: Lab) -> None:
    lab.source = Source(texts={"page": "text"})
    pair = await lab.pair()
    await lab.ingest(pair)
    async with lab.database.transaction(lab.tenant) as connection:
        await connection.execute("update connector_credential_pair set state = 'removing'")
    with pytest.raises(Conflict, match="being removed"):
        await lab.pairs.resume(lab.tenant, pair)
    with pytest.raises(Conflict, match="being removed"):
        await lab.pairs.request_run(lab.tenant, pair, client=lab.client)
    await tick(lab)
    assert await lab.pairs.list(lab.tenant) == []
    assert await lab.value("select count(*) from document") == 0


async def test_old_attempts_go_and_the_newest_stays(lab: Lab) -> None:
    lab.source = Source(texts={"page": "text"})
    pair = await lab.pair()
    attempts = [await lab.ingest(pair) for _ in range(5)]
    for attempt in attempts:
        assert (await lab.attempts.get(lab.tenant, attempt)).status is AttemptStatus.COMPLETED
        await end(lab, attempt, "completed", ago=31 * 86400)
    assert await drop_ended(lab.database, lab.tenant, keep_days=32, at_once=2) == 0
    assert await drop_ended(lab.database, lab.tenant, keep_days=30, at_once=2) == 4
    assert [view.id for view in await lab.attempts.list(lab.tenant)] == [attempts[-1]]
    await lab.proof()


async def test_a_vector_index_is_built_once_a_tenant_has_outgrown_exact_search(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.source = Source(texts={f"page-{at}": f"text {at}" for at in range(20)})
    await lab.ingest(await lab.pair())
    index = PostgresIndex()
    async with lab.database.transaction(lab.tenant) as connection:
        assert not await index.ensure_vector_index(connection)
        vector = (await lab.embedder.embed(["text 7"]))[0]
        exact = await index.nearest(connection, vector, dimension=256, limit=10)
        monkeypatch.setattr("hive.ingest.index.postgres.EXACT_CHUNKS", 30)
        assert await index.ensure_vector_index(connection)
        assert not await index.ensure_vector_index(connection)
        await connection.execute("set local enable_seqscan = off")
        plan = await connection.fetch(
            "explain select document from chunk order by (embedding::hive_ext.vector(256)) "
            "operator(hive_ext.<=>) $1::hive_ext.vector(256) limit 10",
            vector,
        )
        assert any("chunk_embedding" in row["QUERY PLAN"] for row in plan)
        assert await index.nearest(connection, vector, dimension=256, limit=10) == exact
