"""Ends that are no success: cancelled, or a dead letter that can be replayed."""

import pytest

from hive.broker.port import Lane, Verdict
from hive.errors import Conflict
from hive.ids import new_message_id
from hive.outcomes import Cancelled, Completed, ErrorKind, ErrorRecord, Failed, Released, Retrying
from hive.testing.contract_steps import ACME, ERROR, OTHER, Steps
from hive.testing.harness import QUEUE, Harness, message


class Endings(Steps):
    """What is cancelled ends; what failed is kept, and comes back when told to."""

    # cancel

    async def test_waiting_messages_are_cancelled_at_once(self, harness: Harness) -> None:
        pending, delayed, retried = message(key="a"), message(key="b", delay_seconds=30), message(key="c")
        await harness.broker.publish([retried])
        await self.settle(harness, await self.one(harness), Retrying(delay_seconds=30, error=ERROR))
        await harness.broker.publish([pending, delayed, message(key="d")])
        assert await harness.broker.cancel([pending.id, delayed.id, retried.id, new_message_id()]) == 3
        assert await harness.broker.cancel([pending.id]) == 0
        await harness.expect_depth(waiting=1, delayed=0, running=0)
        await harness.pass_time(31)
        await harness.broker.sweep([QUEUE])
        assert (await self.one(harness)).key == "d"
        answers = await harness.broker.publish([message(key=each) for each in "abc"])
        assert not any(each.duplicate for each in answers)

    async def test_a_running_message_is_flagged(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(2)])
        first, second = await harness.broker.claim(QUEUE, self.me, 2)
        assert list(await harness.broker.cancel_requested([first, second])) == []
        assert await harness.broker.cancel([second.id]) == 1
        assert list(await harness.broker.cancel_requested([first, second])) == [second]
        assert await self.settle(harness, second, Cancelled(reason="asked for")) is Verdict.ACCEPTED
        await harness.expect_depth(waiting=0, delayed=0, running=1)
        assert await harness.broker.dead_letters() == []

    async def test_a_flagged_message_does_not_come_back(self, harness: Harness) -> None:
        for leave in ("retry", "throttle", "release", "death", "crash"):
            await harness.broker.publish([message(key="k")])
            got = await self.one(harness)
            await harness.broker.publish([message(key="k")])  # to run again: the cancellation forgets it
            await harness.broker.cancel([got.id])
            match leave:
                case "retry":
                    await self.settle(harness, got, Retrying(delay_seconds=0, error=ERROR))
                case "throttle":
                    await self.settle(harness, got, Retrying(delay_seconds=0, error=ERROR, charged=False))
                case "crash":
                    await self.settle(harness, got, Retrying(delay_seconds=0, error=ERROR, crashed=True))
                case "release":
                    await self.settle(harness, got, Released())
                case _:
                    await harness.broker.owner_died(self.me)
            await harness.expect_depth(waiting=0, delayed=0, running=0)

    async def test_cancel_knows_its_tenant(self, harness: Harness) -> None:
        mine, theirs, system = message(tenant=ACME), message(tenant=OTHER), message()
        await harness.broker.publish([mine, theirs, system])
        assert await harness.broker.cancel([mine.id, theirs.id, system.id], tenant=ACME) == 1
        got = await harness.broker.claim(QUEUE, self.me, 10)
        assert {each.id for each in got} == {theirs.id, system.id}

    # dead letters

    async def test_a_dead_letter_says_what_happened(self, harness: Harness) -> None:
        sent = message(tenant=ACME, args={"n": 1})
        await harness.broker.publish([sent])
        nul = ErrorRecord(kind=ErrorKind.PERMANENT, code="ValueError", summary="a NUL: \x00, half: \ud800")
        await self.settle(harness, await self.one(harness), Failed(error=nul))
        (letter,) = await harness.broker.dead_letters()
        assert (letter.id, letter.queue, letter.task, letter.tenant) == (sent.id, QUEUE, sent.task, ACME)
        assert (letter.args, letter.attempts, letter.error.code) == ({"n": 1}, 1, "ValueError")
        assert "\x00" not in letter.error.summary
        await harness.expect_depth(waiting=0, delayed=0, running=0)

    async def test_dead_letters_are_listed_newest_first_and_filtered(self, harness: Harness) -> None:
        sent = [message(tenant=ACME), message(tenant=OTHER), message(queue="elsewhere", tenant=ACME)]
        for each in sent:
            await harness.broker.publish([each])
            (got,) = await harness.broker.claim(each.queue, self.me, 1)
            await self.settle(harness, got, Failed(error=ERROR))
        first, second, third = (each.id for each in sent)
        assert [each.id for each in await harness.broker.dead_letters()] == [third, second, first]
        assert [each.id for each in await harness.broker.dead_letters(limit=1)] == [third]
        assert [each.id for each in await harness.broker.dead_letters(queue=QUEUE)] == [second, first]
        assert [each.id for each in await harness.broker.dead_letters(tenant=ACME)] == [third, first]

    async def test_a_replay_has_fresh_budgets(self, harness: Harness) -> None:
        sent = message(tenant=ACME, args={"n": 1}, lane=Lane.HIGH, key="k", max_attempts=1, cost=3)
        await harness.broker.publish([sent])
        first = await self.one(harness)
        await self.settle(harness, first, Failed(error=ERROR))
        assert await harness.broker.replay([first.id, new_message_id()]) == 1
        assert await harness.broker.dead_letters() == []
        again = await self.one(harness)
        assert (again.id, again.args, again.tenant, again.lane) == (first.id, {"n": 1}, ACME, Lane.HIGH)
        assert (again.attempt, again.max_attempts, again.key, again.cost) == (1, 1, "k", 3)
        assert again.fence > first.fence
        assert await self.settle(harness, first, Completed()) is Verdict.STALE
        assert await self.settle(harness, again, Completed()) is Verdict.ACCEPTED

    async def test_a_replay_is_refused_while_another_holds_the_key(self, harness: Harness) -> None:
        dead = await self.fail(harness)
        (holder,) = await harness.broker.publish([message(key="k")])
        with pytest.raises(Conflict, match=str(dead.id)) as waiting:
            await harness.broker.replay([dead.id])
        assert str(holder.id) in str(waiting.value)
        running = await self.one(harness)
        with pytest.raises(Conflict, match=str(dead.id)):
            await harness.broker.replay([dead.id])
        # The refused replay did not mark the running one either.
        assert await self.settle(harness, running, Completed()) is Verdict.ACCEPTED
        assert await harness.broker.replay([dead.id]) == 1

    async def test_of_two_dead_with_one_key_none_is_replayed(self, harness: Harness) -> None:
        first, second = await self.fail(harness), await self.fail(harness)
        with pytest.raises(Conflict):
            await harness.broker.replay([first.id, second.id])
        await harness.expect_depth(waiting=0, delayed=0, running=0)
        assert await harness.broker.replay([second.id]) == 1
        assert [each.id for each in await harness.broker.dead_letters()] == [first.id]

    async def test_a_purged_letter_is_gone(self, harness: Harness) -> None:
        first, second = await self.fail(harness), await self.fail(harness)
        assert await harness.broker.purge([first.id, new_message_id()]) == 1
        assert [each.id for each in await harness.broker.dead_letters()] == [second.id]
        assert await harness.broker.replay([first.id]) == 0
