"""Pools on the real ledger: effects exactly once, whatever ends the handler, and wherever."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from hive.broker.ledger import Ledger
from hive.context import Context
from hive.ids import DEFAULT_TENANT, ProcessId, QueueName, new_process_id
from hive.store.postgres import Database
from hive.tasks import task
from patience import until
from pool_kit import Rig
from pools.run import StopReason
from stepping import Stepping

WORK = QueueName("work")
SUPPORT = Path(__file__).parent.parent / "support"


@pytest.fixture
async def ledger(database: Database) -> Ledger:
    async with database.transaction(DEFAULT_TENANT) as connection:
        await connection.execute("create table effect (job uuid not null)")
    return Ledger(database)


async def effects(database: Database) -> int:
    async with database.transaction(DEFAULT_TENANT) as connection:
        return await connection.fetchval("select count(*) from effect")


def rig_on(ledger: Ledger, database: Database, **options: Any) -> Rig:
    return Rig(broker=ledger, stores=database, tenant=DEFAULT_TENANT, **options)


async def effect(context: Context) -> None:
    """One row in the transaction that settles the job, with reads and progress around it."""
    async with context.connection() as connection:
        await connection.fetchval("select 1")
    await context.progress("writing")
    async with context.transaction() as connection:
        await connection.execute("insert into effect (job) values ($1)", context.id)
    await asyncio.sleep(0)


async def test_a_transactional_effect_settles_its_job_in_the_same_commit(ledger: Ledger, database: Database):
    rig = rig_on(ledger, database)
    declared = task(queue="work", into=rig.registry)(effect)
    async with rig.serving():
        jobs = await rig.send(declared, 20)
        await until(lambda: rig.count("completed") == 20)
    assert await effects(database) == 20
    views = [await ledger.find(job) for job in jobs]
    assert {view.state.value for view in views if view} == {"completed"}


async def test_an_error_after_the_commit_does_not_run_the_job_again(ledger: Ledger, database: Database):
    rig = rig_on(ledger, database)

    async def handler(context: Context) -> None:
        await effect(context)
        raise TimeoutError("after the commit")

    declared = task(queue="work", into=rig.registry)(handler)
    async with rig.serving():
        (job,) = await rig.send(declared)
        await until(lambda: rig.labels.get(job) == "completed")
    view = await ledger.find(job)
    assert view is not None
    assert view.state.value == "completed"
    assert await effects(database) == 1


async def test_an_error_in_the_transaction_takes_the_effect_with_it(ledger: Ledger, database: Database):
    rig = rig_on(ledger, database)

    async def handler(context: Context) -> None:
        async with context.transaction() as connection:
            await connection.execute("insert into effect (job) values ($1)", context.id)
            raise ValueError("no")

    declared = task(queue="work", into=rig.registry)(handler)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("failed") == 1)
    assert await effects(database) == 0


@pytest.mark.parametrize("reason", [StopReason.SHUTDOWN, StopReason.OPERATOR, StopReason.LOST])
async def test_cancelled_at_each_await_the_effect_happens_exactly_once(
    ledger: Ledger, database: Database, reason: StopReason
):
    rig = rig_on(ledger, database, slots=1, prefetch=0)
    steps: dict[Any, Stepping] = {}
    reached = 0

    def stop() -> None:
        nonlocal reached
        reached += 1
        (run,) = [each for each in rig.pool._runs() if each.active]
        run.stop(reason)

    async def handler(context: Context, at: int) -> None:
        first = context.id not in steps
        stepping = Stepping(effect(context), at if first else -1, stop)
        steps.setdefault(context.id, stepping)
        await stepping

    declared = task(queue="work", into=rig.registry)(handler)
    seen: list[tuple[str, int]] = []
    async with rig.serving():
        for at in range(200):
            before, stopped = await effects(database), reached
            (job,) = await rig.send(declared, at=at)
            if reason is StopReason.LOST:
                await until(lambda job=job: job in rig.labels)
                if rig.labels[job] == "stale":
                    await ledger.owner_died(rig.owner)
            ends = ("completed", "cancelled")
            await until(lambda job=job: rig.labels.get(job) in ends or rig.labels.get(job) == "stale")
            async with anyio.create_task_group() as group:
                group.start_soon(_until_terminal, ledger, job)
            view = await ledger.find(job)
            assert view is not None
            count = await effects(database) - before
            seen.append((view.state.value, count))
            assert count == (1 if view.state.value == "completed" else 0), (at, view.state)
            if reached == stopped:
                break
        else:
            raise AssertionError("the handler never came to its end")
    assert reached > 8, "it was stopped at many different awaits"
    assert seen[-1] == ("completed", 1)
    if reason is not StopReason.OPERATOR:
        assert {state for state, _ in seen} == {"completed"}
    assert rig.pool.slots.free == 1


async def _until_terminal(ledger: Ledger, job: Any, dead: ProcessId | None = None) -> None:
    """Wait for the end of ``job``; ``dead``: the process to take it over from, as each sweep would."""
    with anyio.fail_after(20):
        while True:
            if dead is not None:
                await ledger.owner_died(dead)  # not at once: its last transaction may still hold the row
            view = await ledger.find(job)
            if view is not None and view.finished_at is not None:
                return
            await anyio.sleep(0.002)


async def test_killed_at_each_await_the_effect_happens_exactly_once(
    ledger: Ledger, database: Database, postgres_dsn: str
):
    rig = rig_on(ledger, database, slots=1, prefetch=0)

    async def handler(context: Context) -> None:
        async with context.transaction() as connection:
            await connection.execute("insert into effect (job) values ($1)", context.id)

    declared = task(queue="work", name="effect", into=rig.registry)(handler)
    killed = 0
    for at in range(60):
        before = await effects(database)
        (job,) = await rig.send(declared)
        owner = new_process_id()
        status = await _dying_pool(postgres_dsn, owner, at)
        assert status in (0, -signal.SIGKILL)
        killed += status != 0
        async with rig.serving():
            await _until_terminal(ledger, job, owner)
        assert await effects(database) == before + 1, f"killed at await {at}"
        if status == 0:
            break
    else:
        raise AssertionError("the handler never came to its end")
    assert killed >= 4


async def _dying_pool(dsn: str, owner: ProcessId, at: int) -> int:
    path = os.pathsep.join([str(SUPPORT), *sys.path])
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SUPPORT / "dying_pool.py"),
        dsn,
        str(owner),
        str(at),
        env={**os.environ, "PYTHONPATH": path},
    )
    async with asyncio.timeout(30):
        return await process.wait()


async def test_a_cancellation_asked_for_in_the_ledger_ends_the_handler(ledger: Ledger, database: Database):
    rig = rig_on(ledger, database)

    async def handler(context: Context) -> None:
        await anyio.sleep_forever()

    declared = task(queue="work", into=rig.registry)(handler)
    async with rig.serving():
        (job,) = await rig.send(declared)
        await until(lambda: rig.started)
        assert await ledger.cancel([job]) == 1
        await until(lambda: rig.labels.get(job) == "cancelled")


async def test_a_drain_hands_ledger_jobs_back_unburned(ledger: Ledger, database: Database):
    rig = rig_on(ledger, database, slots=2, prefetch=2)

    async def handler(context: Context) -> None:
        await anyio.sleep_forever()

    declared = task(queue="work", into=rig.registry)(handler)
    async with rig.serving() as pool:
        jobs = await rig.send(declared, 4)
        await until(lambda: len(rig.started) == 2)
        report = await pool.drain(0)
    assert report.handed_back >= 2
    other = await ledger.claim(WORK, new_process_id(), 9)
    assert sorted(each.id for each in other) == sorted(jobs)
    assert {(each.attempt, each.redelivered) for each in other} == {(1, False)}


async def test_a_thread_handler_uses_the_transaction_through_its_portal(ledger: Ledger, database: Database):
    rig = rig_on(ledger, database)

    def handler(context: Context) -> None:
        with context.portal.wrap_async_context_manager(context.transaction()) as connection:
            context.portal.call(connection.execute, "insert into effect (job) values ($1)", context.id)

    declared = task(queue="work", into=rig.registry)(handler)
    async with rig.serving():
        await rig.send(declared, 3)
        await until(lambda: rig.count("completed") == 3)
    assert await effects(database) == 3
