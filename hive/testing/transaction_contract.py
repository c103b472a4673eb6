"""What a broker with transactions promises besides: an effect and the end of its job commit together.

Derive a class as for ``BrokerContract``; the harness then also opens transactions of its own
(``TransactionalHarness``).
"""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

import anyio
import anyio.lowlevel
import pytest

from hive.broker.port import Delivery, Settlement, TransactionalBroker, Verdict
from hive.errors import LeaseLost
from hive.ids import DEFAULT_TENANT, new_process_id
from hive.outcomes import Completed
from hive.states import JobState
from hive.store.connection import Connection
from hive.testing.harness import QUEUE, Harness, message


class TransactionalHarness(Harness, Protocol):
    """A harness whose broker has ``transaction()``."""

    @property
    def ledger(self) -> TransactionalBroker:
        """The broker."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        """A transaction of an application's own."""
        ...

    async def effects(self) -> int:
        """How often ``effect`` has been committed."""
        ...

    async def effect(self, connection: Connection) -> None:
        """Write something countable."""
        ...


class TransactionContract:
    """One method a promise."""

    me = new_process_id()

    async def one(self, harness: TransactionalHarness) -> Delivery:
        """Claim the one message that waits."""
        (delivery,) = await harness.ledger.claim(QUEUE, self.me, 10)
        return delivery

    async def state(self, harness: TransactionalHarness, delivery: Delivery) -> JobState:
        """Where the job stands."""
        view = await harness.ledger.find(delivery.id)
        assert view is not None
        return view.state

    async def test_an_effect_and_its_settle_commit_together(self, harness: TransactionalHarness) -> None:
        await harness.ledger.publish([message(tenant=DEFAULT_TENANT)])
        got = await self.one(harness)
        async with harness.ledger.transaction(got) as connection:
            await harness.effect(connection)
            assert await self.state(harness, got) is JobState.RUNNING
        assert await self.state(harness, got) is JobState.COMPLETED
        assert await harness.effects() == 1
        settled = Settlement(delivery=got, outcome=Completed(settled=True))
        assert await harness.ledger.settle([settled]) == [Verdict.ACCEPTED]

    async def test_an_error_takes_both_back(self, harness: TransactionalHarness) -> None:
        await harness.ledger.publish([message()])
        got = await self.one(harness)
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the transaction is what is tested
            async with harness.ledger.transaction(got) as connection:
                await harness.effect(connection)
                raise ZeroDivisionError
        assert await harness.effects() == 0
        assert await self.state(harness, got) is JobState.RUNNING
        async with harness.ledger.transaction(got) as connection:
            await harness.effect(connection)
        assert await harness.effects() == 1

    async def test_a_cancellation_takes_both_back(self, harness: TransactionalHarness) -> None:
        await harness.ledger.publish([message()])
        got = await self.one(harness)
        with anyio.CancelScope() as scope:
            async with harness.ledger.transaction(got) as connection:
                await harness.effect(connection)
                scope.cancel()
                await anyio.lowlevel.checkpoint()
        assert await harness.effects() == 0
        assert await self.state(harness, got) is JobState.RUNNING

    async def test_a_zombie_gets_no_transaction(self, harness: TransactionalHarness) -> None:
        await harness.ledger.publish([message()])
        zombie = await self.one(harness)
        await harness.ledger.owner_died(self.me)
        for heir in ("nobody yet", "its own process"):
            with pytest.raises(LeaseLost):
                async with harness.ledger.transaction(zombie):
                    pytest.fail(f"it was let in, while the job belonged to {heir}")
            if heir == "nobody yet":
                assert (await self.one(harness)).fence > zombie.fence

    async def test_only_one_transaction_settles(self, harness: TransactionalHarness) -> None:
        await harness.ledger.publish([message()])
        got = await self.one(harness)
        async with harness.ledger.transaction(got) as connection:
            await harness.effect(connection)
        with pytest.raises(LeaseLost):
            async with harness.ledger.transaction(got) as connection:
                await harness.effect(connection)
        assert await harness.effects() == 1

    async def test_a_handler_in_its_transaction_is_not_taken_over(
        self, harness: TransactionalHarness
    ) -> None:
        await harness.ledger.publish([message() for _ in range(3)])
        got = await harness.ledger.claim(QUEUE, self.me, 3)
        peer = await harness.peer()
        async with harness.ledger.transaction(got[0]) as connection:
            await harness.effect(connection)
            # None of these may wait for the row that this transaction holds.
            with anyio.fail_after(20):
                assert list(await peer.renew(got)) == []
                assert await peer.progress(got[0], stage="inside", done=1, total=2)
                await peer.mark_started(got)
                assert await peer.settle([Settlement(delivery=got[1], outcome=Completed())]) == [
                    Verdict.ACCEPTED
                ]
                assert await peer.owner_died(self.me) == 1
        assert await self.state(harness, got[0]) is JobState.COMPLETED
        assert await self.state(harness, got[2]) is JobState.PENDING
        assert await harness.effects() == 1

    async def test_a_publish_while_it_runs_is_kept(self, harness: TransactionalHarness) -> None:
        await harness.ledger.publish([message(key="k")])
        got = await self.one(harness)
        await harness.ledger.publish([message(key="k")])
        async with harness.ledger.transaction(got) as connection:
            await harness.effect(connection)
        assert (await self.one(harness)).id == got.id

    async def test_a_message_exists_exactly_if_its_transaction_commits(
        self, harness: TransactionalHarness
    ) -> None:
        lost, sent = message(), message(key="k")
        with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the transaction is what is tested
            async with harness.transaction() as connection:
                await harness.ledger.publish([lost], connection=connection)
                raise ZeroDivisionError
        await harness.expect_depth(waiting=0, delayed=0, running=0)
        async with harness.transaction() as connection:
            await harness.effect(connection)
            await harness.ledger.publish([sent], connection=connection)
            assert await harness.ledger.claim(QUEUE, self.me, 1) == []
        assert (await self.one(harness)).id == sent.id

    async def test_a_job_sends_more_work_in_its_own_transaction(self, harness: TransactionalHarness) -> None:
        await harness.ledger.publish([message()])
        got = await self.one(harness)
        child = message(parent=got.id)
        async with harness.ledger.transaction(got) as connection:
            await harness.ledger.publish([child], connection=connection)
        (claimed,) = await harness.ledger.claim(QUEUE, self.me, 10)
        assert (claimed.id, claimed.parent) == (child.id, got.id)
