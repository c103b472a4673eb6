"""Whose a message is: fences, leases, and what deaths are charged to."""

from hive.broker.port import Swept, Verdict
from hive.outcomes import Completed, ErrorKind, Failed, Released, Retrying
from hive.testing.contract_steps import ERROR, Steps, settlement
from hive.testing.harness import QUEUE, Harness, message


class Leases(Steps):
    """Nobody settles what another holds, and a death is charged to whom it belongs."""

    # fences and leases

    async def test_a_zombie_changes_nothing(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        zombie = await self.one(harness)
        await harness.pass_time(61)
        assert (await harness.broker.sweep([QUEUE])).expired == 1
        (heir,) = await harness.broker.claim(QUEUE, self.somebody, 1)
        assert heir.redelivered
        assert heir.fence > zombie.fence
        for outcome in (Completed(), Failed(error=ERROR), Retrying(delay_seconds=0, error=ERROR), Released()):
            assert await self.settle(harness, zombie, outcome) is Verdict.STALE
        assert list(await harness.broker.renew([zombie])) == [zombie]
        assert not await harness.broker.progress(zombie, stage="late", done=1, total=2)
        await harness.broker.mark_started([zombie])
        await harness.expect_depth(waiting=0, delayed=0, running=1)
        assert await self.settle(harness, heir, Completed()) is Verdict.ACCEPTED
        assert await self.settle(harness, heir, Completed()) is Verdict.STALE

    async def test_the_same_process_as_its_own_zombie(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        zombie = await self.one(harness)
        await harness.pass_time(61)
        await harness.broker.sweep([QUEUE])
        heir = await self.one(harness)
        assert await self.settle(harness, zombie, Completed()) is Verdict.STALE
        assert await self.settle(harness, heir, Completed()) is Verdict.ACCEPTED

    async def test_a_settle_of_a_swept_message_is_stale(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        zombie = await self.one(harness)
        await harness.pass_time(61)
        await harness.broker.sweep([QUEUE])
        assert await self.settle(harness, zombie, Completed()) is Verdict.STALE
        await harness.expect_depth(waiting=1, delayed=0, running=0)

    async def test_a_batch_with_stale_ones_settles_the_others(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(3)])
        first, second, third = await harness.broker.claim(QUEUE, self.me, 3)
        await self.settle(harness, second, Completed())
        verdicts = await harness.broker.settle(
            [settlement(each, Completed()) for each in (first, second, third, first)]
        )
        assert verdicts == [Verdict.ACCEPTED, Verdict.STALE, Verdict.ACCEPTED, Verdict.STALE]

    async def test_a_renewed_lease_holds(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(3)])
        got = await harness.broker.claim(QUEUE, self.me, 3)
        for _ in range(4):
            await harness.pass_time(40)
            assert list(await harness.broker.renew(got)) == []
            assert await harness.broker.sweep([QUEUE]) == Swept()
        await harness.pass_time(61)
        assert (await harness.broker.sweep([QUEUE])).expired == 3

    async def test_a_lease_that_ended_unclaimed_is_renewed(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        got = await self.one(harness)
        await harness.pass_time(100)
        assert list(await harness.broker.renew([got])) == []
        assert await harness.broker.sweep([QUEUE]) == Swept()
        assert await self.settle(harness, got, Completed()) is Verdict.ACCEPTED

    async def test_renew_names_exactly_the_lost(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(3)])
        kept, ended, taken = await harness.broker.claim(QUEUE, self.me, 3)
        await self.settle(harness, ended, Completed())
        await self.settle(harness, taken, Released())
        await harness.broker.claim(QUEUE, self.somebody, 1)
        lost = await harness.broker.renew([kept, ended, taken])
        assert {each.id for each in lost} == {ended.id, taken.id}

    async def test_the_deliveries_of_a_dead_process_come_back_at_once(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(4)])
        mine = await harness.broker.claim(QUEUE, self.me, 2)
        theirs = await harness.broker.claim(QUEUE, self.somebody, 2)
        assert await harness.broker.owner_died(self.me) == 2
        assert await harness.broker.owner_died(self.me) == 0
        again = await harness.broker.claim(QUEUE, self.somebody, 10)
        assert {each.id for each in again} == {each.id for each in mine}
        assert all(each.redelivered and each.attempt == 1 for each in again)
        verdicts = await harness.broker.settle([settlement(each, Completed()) for each in (*mine, *theirs)])
        assert verdicts == [Verdict.STALE, Verdict.STALE, Verdict.ACCEPTED, Verdict.ACCEPTED]

    # crash budgets

    async def test_a_third_dead_child_is_poison(self, harness: Harness) -> None:
        await harness.broker.publish([message(max_attempts=1)])
        crash = Retrying(delay_seconds=1, error=ERROR, crashed=True)
        verdicts: list[Verdict] = []
        for _ in range(3):
            got = await self.one(harness)
            assert got.attempt == 1
            verdicts.append(await self.settle(harness, got, crash))
            await harness.pass_time(2)
            await harness.broker.sweep([QUEUE])
        assert verdicts == [Verdict.ACCEPTED, Verdict.ACCEPTED, Verdict.POISONED]
        (letter,) = await harness.broker.dead_letters()
        assert (letter.error.kind, letter.error.summary) == (ErrorKind.POISON, ERROR.summary)

    async def test_progress_resets_the_budget_of_dead_children(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        crash = Retrying(delay_seconds=0, error=ERROR, crashed=True)
        for _ in range(6):
            got = await self.one(harness)
            assert await harness.broker.progress(got, stage="reading", done=1, total=None)
            assert await self.settle(harness, got, crash) is Verdict.ACCEPTED
            await harness.pass_time(1)
            await harness.broker.sweep([QUEUE])

    async def test_a_tenth_death_of_hive_is_poison(self, harness: Harness) -> None:
        await harness.broker.publish([message(max_attempts=1)])
        for death in range(1, 11):
            got = await self.one(harness)
            assert got.redelivered is (death > 1)
            await harness.broker.mark_started([got])
            await harness.pass_time(61)
            swept = await harness.broker.sweep([QUEUE])
            assert (swept.expired, swept.failed) == (1, death // 10)
        (letter,) = await harness.broker.dead_letters()
        assert letter.error.kind is ErrorKind.POISON

    async def test_a_death_of_hive_charges_nothing_that_had_not_started(self, harness: Harness) -> None:
        await harness.broker.publish([message(max_attempts=1)])
        for _ in range(15):
            got = await self.one(harness)
            assert got.attempt == 1
            assert await harness.broker.owner_died(self.me) == 1
        await harness.broker.mark_started([await self.one(harness)])
        assert await harness.broker.owner_died(self.me) == 1
        assert await harness.broker.dead_letters() == []

    async def test_progress_resets_the_budget_of_hives_deaths(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        for _ in range(12):
            got = await self.one(harness)
            await harness.broker.mark_started([got])
            assert await harness.broker.progress(got, stage="reading", done=None, total=None)
            assert await harness.broker.owner_died(self.me) == 1
        assert await harness.broker.dead_letters() == []

    async def test_an_outcome_ends_the_redelivery(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        await self.one(harness)
        await harness.broker.owner_died(self.me)
        second = await self.one(harness)
        assert second.redelivered
        await self.settle(harness, second, Released())
        assert not (await self.one(harness)).redelivered
