"""The ledger under the contract suite, on a real PostgreSQL; and what only the ledger has."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import anyio
import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hive.broker.port import Lane, Settlement, Verdict
from hive.ids import ProcessId, QueueName, TenantId, new_process_id
from hive.outcomes import Completed, ErrorKind, ErrorRecord, ExitDetail, Failed, Outcome, Released, Retrying
from hive.settings import Postgres
from hive.states import JobState
from hive.store.connection import Connection
from hive.store.postgres import Database
from hive.testing.broker_contract import BrokerContract
from hive.testing.broker_machine import BrokerMachine
from hive.testing.fairness_contract import FairnessContract
from hive.testing.harness import QUEUE, message
from hive.testing.operations_contract import OperationsContract
from hive.testing.transaction_contract import TransactionContract
from ledger_harness import LedgerHarness

ACME = TenantId("acme")
ERROR = ErrorRecord(kind=ErrorKind.PERMANENT, code="ValueError", summary="it did not work")


@pytest.fixture
async def harness(database: Database) -> LedgerHarness:
    return await LedgerHarness.over(database)


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again, for ten seconds at the most."""
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.005)


class TestLedger(BrokerContract):
    pass


class TestLedgerOperations(OperationsContract):
    pass


class TestLedgerFairness(FairnessContract):
    pass


class TestLedgerTransactions(TransactionContract):
    pass


class TestLedgerAlone:
    """What has no counterpart in the other carriers."""

    me = new_process_id()

    async def attempts(self, harness: LedgerHarness) -> list[tuple[object, ...]]:
        async with harness.database.acquire() as connection:
            found = await connection.fetch(
                "select outcome, attempt, error_code, exit, exit_signal, peak_memory_bytes, owner"
                " from hive.job_attempt order by fence"
            )
        return [tuple(row.values()) for row in found]

    async def test_a_batch_said_twice_is_stored_once(self, harness: LedgerHarness) -> None:
        """Also where it is longer than one statement, and where its messages have little in common."""
        sent = [
            message(
                args={"n": number},
                tenant=None if number % 3 else ACME,
                lane=Lane(number % 2),
                cost=1 + number % 5,
                delay_seconds=60.0 * (number % 4 == 0),
                resource="r" if number % 7 == 0 else None,
            )
            for number in range(2_500)
        ]
        await harness.ledger.publish(sent[:100])
        for _ in range(2):
            answers = await harness.ledger.publish(sent)
            assert [(each.id, each.duplicate) for each in answers] == [(each.id, False) for each in sent]
        async with harness.database.acquire() as connection:
            stored = await connection.fetch(
                "select id, args, tenant, lane, cost, resource, state,"
                " run_at - created_at > interval '50 seconds' as late from hive.job order by args->'n'"
            )
        assert [tuple(row.values()) for row in stored] == [
            (
                *(each.id, each.args, each.tenant, each.lane, each.cost, each.resource),
                *(("scheduled", True) if each.delay_seconds else ("pending", False)),
            )
            for each in sent
        ]

    async def test_a_batch_keeps_its_order(self, harness: LedgerHarness) -> None:
        sent = [message(args={"n": number}) for number in range(300)]
        await harness.ledger.publish(sent)
        got = await harness.ledger.claim(QUEUE, self.me, 300)
        assert [each.id for each in got] == [each.id for each in sent]

    async def test_runs_that_were_not_clean_leave_a_row(self, harness: LedgerHarness) -> None:
        await harness.ledger.publish([message()])
        exit = ExitDetail(exit="signal", signal=9, peak_memory_bytes=1 << 33)
        for outcome in (
            Released(),
            Retrying(delay_seconds=0, error=ERROR),
            Retrying(delay_seconds=0, error=ERROR, crashed=True, exit=exit),
            None,
            Failed(error=ERROR),
        ):
            (got,) = await harness.ledger.claim(QUEUE, self.me, 1)
            await harness.ledger.mark_started([got])
            if outcome is None:
                await harness.ledger.owner_died(self.me)
            else:
                await harness.ledger.settle([Settlement(delivery=got, outcome=outcome)])
            await harness.ledger.sweep([QUEUE])
        assert await self.attempts(harness) == [
            ("released", 1, None, None, None, None, self.me),
            ("retrying", 1, "ValueError", None, None, None, self.me),
            ("crashed", 2, "ValueError", "signal", 9, 1 << 33, self.me),
            ("crashed", 2, "hive_died", None, None, None, self.me),
            ("failed", 2, "ValueError", None, None, None, self.me),
        ]

    async def test_clean_runs_and_unstarted_returns_leave_none(self, harness: LedgerHarness) -> None:
        await harness.ledger.publish([message(), message()])
        first, second = await harness.ledger.claim(QUEUE, self.me, 2)
        await harness.ledger.settle(
            [
                Settlement(delivery=first, outcome=Completed()),
                Settlement(delivery=second, outcome=Released()),
            ]
        )
        assert await self.attempts(harness) == []

    async def test_views_show_every_column(self, harness: LedgerHarness) -> None:
        tenant = TenantId("acme")
        sent = message(tenant=tenant, args={"n": 1})
        await harness.ledger.publish([sent, message()])
        got = next(each for each in await harness.ledger.claim(QUEUE, self.me, 2) if each.id == sent.id)
        await harness.ledger.mark_started([got])
        await harness.ledger.progress(got, stage="reading", done=1, total=3)
        view = await harness.ledger.find(got.id)
        assert view is not None
        assert (view.state, view.stage, view.done, view.total) == (JobState.RUNNING, "reading", 1, 3)
        assert (view.owner, view.args, view.tenant, view.attempt) == (self.me, {"n": 1}, tenant, 1)
        assert view.started_at is not None
        assert await harness.ledger.jobs(tenant=tenant) == [view]
        assert await harness.ledger.jobs(state=JobState.PENDING) == []
        assert len(await harness.ledger.jobs(queue=QUEUE, task="task", limit=5)) == 2
        await harness.ledger.settle([Settlement(delivery=got, outcome=Failed(error=ERROR))])
        failed = await harness.ledger.find(got.id)
        assert failed is not None
        assert (failed.state, failed.error, failed.owner) == (JobState.FAILED, ERROR, None)
        assert await harness.ledger.find(message().id) is None

    async def test_a_cancelled_job_can_be_replayed(self, harness: LedgerHarness) -> None:
        sent = message()
        await harness.ledger.publish([sent])
        await harness.ledger.cancel([sent.id])
        assert await harness.ledger.replay([sent.id]) == 1
        (got,) = await harness.ledger.claim(QUEUE, self.me, 1)
        assert got.id == sent.id

    async def test_an_expired_job_fails_as_expired(self, harness: LedgerHarness) -> None:
        await harness.ledger.publish(
            [message(expires_seconds=5), message(expires_seconds=5, delay_seconds=60)]
        )
        await harness.pass_time(6)
        assert (await harness.ledger.sweep([QUEUE])).failed == 2
        assert {each.error.kind for each in await harness.ledger.dead_letters()} == {ErrorKind.EXPIRED}

    async def test_a_process_known_to_be_dead_is_swept(self, harness: LedgerHarness) -> None:
        await harness.ledger.publish([message()])
        await harness.ledger.claim(QUEUE, self.me, 1)
        async with harness.database.acquire() as connection:
            await connection.execute(
                "insert into hive.process (id, instance, host, pid, stopped_at)"
                " values ($1, $1, 'h', 1, now())",
                self.me,
            )
        assert (await harness.ledger.sweep([QUEUE])).orphaned == 1

    async def test_prune_keeps_what_is_young(self, harness: LedgerHarness) -> None:
        await harness.ledger.publish([message() for _ in range(4)])
        done, failed, old, running = await harness.ledger.claim(QUEUE, self.me, 4)
        await harness.ledger.settle([Settlement(delivery=old, outcome=Completed())])
        await harness.pass_time(3_600 * 25)
        await harness.ledger.settle(
            [
                Settlement(delivery=done, outcome=Completed()),
                Settlement(delivery=failed, outcome=Failed(error=ERROR)),
            ]
        )
        await harness.pass_time(3_600 * 2)
        assert await harness.ledger.prune(completed_hours=24, failed_days=30) == 1
        assert {each.id for each in await harness.ledger.jobs()} == {done.id, failed.id, running.id}
        await harness.pass_time(86_400 * 31)
        assert await harness.ledger.prune(completed_hours=24, failed_days=30) == 2

    async def test_a_settle_waits_only_for_its_own_row(self, harness: LedgerHarness) -> None:
        await harness.ledger.publish([message(key="k"), message()])
        keyed, plain = await harness.ledger.claim(QUEUE, self.me, 2)
        async with harness.transaction() as connection:
            # The caller's open transaction marks the running job and so holds its row.
            await harness.ledger.publish([message(key="k")], connection=connection)
            async with anyio.create_task_group() as group:
                verdicts: list[Verdict] = []

                async def settle() -> None:
                    verdicts.extend(
                        await harness.ledger.settle(
                            [Settlement(delivery=each, outcome=Completed()) for each in (keyed, plain)]
                        )
                    )

                group.start_soon(settle)
                with anyio.fail_after(10):
                    while True:
                        view = await harness.ledger.find(plain.id)
                        assert view is not None
                        if view.state is JobState.COMPLETED:
                            break
                assert not verdicts
                await connection.execute("commit")
        assert verdicts == [Verdict.RERUN, Verdict.ACCEPTED]

    async def test_a_notification_wakes_another_process(
        self, harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("hive.broker.ledger_wakeups.SLOW_POLL_SECONDS", 60.0)
        peer = await harness.peer()
        async with anyio.create_task_group() as group:
            group.start_soon(harness.ledger.run)
            with anyio.fail_after(20):
                await harness.ledger.wait(QUEUE, 0.01)
                await until(lambda: harness.ledger.listening)
                await harness.ledger.wait(QUEUE, 0.01)
                # Now the poll is a minute away: only a notification comes in time.
                for _ in range(5):
                    await harness.ledger.wait(QUEUE, 0.01)
                    await peer.publish([message()])
                    await harness.ledger.wait(QUEUE, 60)
                # A queue that is waited for later is listened to as well.
                await harness.ledger.wait(QueueName("later"), 0.01)
                await until(lambda: harness.ledger.listening)
                await harness.ledger.wait(QueueName("later"), 0.01)
                await peer.publish([message(queue="later")])
                await harness.ledger.wait(QueueName("later"), 60)
            group.cancel_scope.cancel()

    @pytest.mark.parametrize(
        "outcome",
        [Completed(), Released(), Retrying(error=ERROR, delay_seconds=60)],
        ids=lambda each: type(each).__name__,
    )
    async def test_who_gives_a_resource_back_wakes_the_next(
        self, harness: LedgerHarness, outcome: Outcome
    ) -> None:
        heard: list[str] = []
        await harness.ledger.publish([message(resource="r"), message(resource="r")])
        (first,) = await harness.ledger.claim(QUEUE, self.me, 2)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.database.listen, [f"hive_queue_{QUEUE}"], heard.append)
            await until(lambda: len(heard) == 1)  # said once when it begins to listen
            assert await harness.ledger.settle([Settlement(delivery=first, outcome=outcome)]) == [
                Verdict.ACCEPTED
            ]
            await until(lambda: len(heard) == 2)
            group.cancel_scope.cancel()

    async def test_the_listener_outlives_its_connection(self, harness: LedgerHarness) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(harness.ledger.run)
            with anyio.fail_after(20):
                await harness.ledger.wait(QUEUE, 0.01)
                await until(lambda: harness.ledger.listening)
                async with harness.database.acquire() as connection:
                    killed = await connection.fetch(
                        "select pg_terminate_backend(pid) from pg_stat_activity"
                        " where application_name = 'hive listen' and datname = current_database()"
                    )
                assert killed
                await until(lambda: not harness.ledger.listening)
                await until(lambda: harness.ledger.listening)
            group.cancel_scope.cancel()

    async def test_a_queue_that_comes_later_is_polled_until_it_is_listened_for(
        self, harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The listener before it has ended, so that nothing is heard of any queue meanwhile."""
        async with anyio.create_task_group() as group:
            group.start_soon(harness.ledger.run)
            with anyio.fail_after(20):
                await harness.ledger.wait(QUEUE, 0.01)
                await until(lambda: harness.ledger.listening)
                monkeypatch.setattr("hive.broker.ledger_wakeups.GATHER_SECONDS", 60.0)
                await harness.ledger.wait(QueueName("later"), 0.01)
                await until(lambda: not harness.ledger.listening)
            group.cancel_scope.cancel()

    async def test_the_listener_is_proven_though_other_connections_are_lost(
        self, harness: LedgerHarness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        whole, lost = harness.database.statements, 0

        @asynccontextmanager
        async def statements() -> AsyncGenerator[Connection]:
            nonlocal lost
            async with whole() as connection:
                if lost < 3:
                    lost += 1
                    await connection.fetchval("select pg_terminate_backend(pg_backend_pid())")
                yield connection

        monkeypatch.setattr(harness.database, "statements", statements)
        async with anyio.create_task_group() as group:
            group.start_soon(harness.ledger.run)
            with anyio.fail_after(20):
                await harness.ledger.wait(QUEUE, 0.01)
                await until(lambda: harness.ledger.listening)
            group.cancel_scope.cancel()
        assert lost == 3

    async def test_one_notification_a_queue_and_transaction(self, harness: LedgerHarness) -> None:
        heard: list[str] = []
        async with anyio.create_task_group() as group:
            group.start_soon(harness.database.listen, [f"hive_queue_{QUEUE}", "end"], heard.append)
            with anyio.fail_after(20):
                await until(lambda: len(heard) >= 2)
                async with harness.transaction() as connection:
                    for _ in range(5):
                        await harness.ledger.publish([message(), message()], connection=connection)
                async with harness.database.acquire() as connection:
                    await connection.execute('notify "end"')
                await until(lambda: heard.count("end") >= 2)
            group.cancel_scope.cancel()
        # The call at the beginning, and one for ten messages.
        assert heard.count(f"hive_queue_{QUEUE}") == 2

    async def test_two_publishers_with_many_keys_do_not_deadlock(self, harness: LedgerHarness) -> None:
        for _ in range(10):
            forwards = [message(key=f"k{n}") for n in range(50)]
            backwards = [message(key=f"k{n}") for n in reversed(range(50))]
            await asyncio.gather(harness.ledger.publish(forwards), harness.ledger.publish(backwards))
            got = await harness.ledger.claim(QUEUE, self.me, 100)
            assert len(got) == 50
            await asyncio.gather(
                harness.ledger.publish(backwards),
                harness.ledger.settle([Settlement(delivery=each, outcome=Completed()) for each in got]),
                harness.ledger.publish(forwards),
            )
            while got := await harness.ledger.claim(QUEUE, ProcessId(self.me), 100):
                await harness.ledger.settle([Settlement(delivery=each, outcome=Completed()) for each in got])


def test_the_machine_finds_nothing(postgres_dsn: str) -> None:
    class LedgerMachine(BrokerMachine):
        async def start(self) -> LedgerHarness:
            database = await Database.open(postgres_dsn, settings=Postgres(pool_size=2))
            async with database.acquire() as connection:
                await connection.execute("truncate hive.job cascade")
            return await LedgerHarness.over(database)

        async def stop(self) -> None:
            assert isinstance(self.harness, LedgerHarness)
            await self.harness.database.close()

    run_state_machine_as_test(
        LedgerMachine,
        settings=settings(max_examples=15, stateful_step_count=30, deadline=None, database=None),
    )
