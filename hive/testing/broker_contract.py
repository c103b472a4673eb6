"""The broker contract in executable form. Every carrier of queues passes it, a plug-in's as well.

Derive a class and give it a ``harness`` fixture::

    class TestMine(BrokerContract):
        @pytest.fixture
        async def harness(self) -> AsyncIterator[Harness]:
            yield MyHarness(...)

The harness holds the broker and moves time for it (``hive.testing.harness``): no case sleeps. The broker must
be made with ``lease_seconds=60``, a child crash limit of 3 and a hive crash limit of 10.
"""

import asyncio

import pytest

from hive.broker.port import Delivery, Lane, Published, Settlement, Swept, Verdict
from hive.errors import Conflict, InvalidInput
from hive.ids import TenantId, new_message_id, new_process_id
from hive.outcomes import Cancelled, Completed, ErrorKind, ErrorRecord, Failed, Outcome, Released, Retrying
from hive.testing.harness import QUEUE, Harness, message

ERROR = ErrorRecord(kind=ErrorKind.PERMANENT, code="ValueError", summary="it did not work")
ACME, OTHER = TenantId("acme"), TenantId("other")


def settlement(delivery: Delivery, outcome: Outcome) -> Settlement:
    """``outcome`` of ``delivery``, ready to be settled."""
    return Settlement(delivery=delivery, outcome=outcome)


class BrokerContract:
    """What every broker promises; one method a promise."""

    me = new_process_id()
    somebody = new_process_id()

    async def one(self, harness: Harness) -> Delivery:
        """Claim the one message that waits."""
        (delivery,) = await harness.broker.claim(QUEUE, self.me, 10)
        return delivery

    async def settle(self, harness: Harness, delivery: Delivery, outcome: Outcome) -> Verdict:
        """Settle one delivery."""
        (verdict,) = await harness.broker.settle([settlement(delivery, outcome)])
        return verdict

    async def fail(self, harness: Harness) -> Delivery:
        """Publish one message and give it up."""
        await harness.broker.publish([message(key="k")])
        delivery = await self.one(harness)
        assert await self.settle(harness, delivery, Failed(error=ERROR)) is Verdict.ACCEPTED
        return delivery

    # publish, claim, settle

    async def test_a_message_arrives_as_it_was_sent(self, harness: Harness) -> None:
        parent = new_message_id()
        args = {"text": 'naïve "quoted" \\ 🐝', "none": None, "list": [1, 2.5, True, {"a": []}], "big": 2**60}
        sent = message(
            tenant=ACME,
            args=args,
            lane=Lane.HIGH,
            key="k",
            cost=7,
            max_attempts=2,
            parent=parent,
            trace="t-1",
        )
        assert await harness.broker.publish([sent]) == [Published(id=sent.id)]
        got = await self.one(harness)
        assert (got.id, got.queue, got.task, got.tenant, got.args) == (sent.id, QUEUE, sent.task, ACME, args)
        assert (got.lane, got.key, got.cost, got.max_attempts) == (Lane.HIGH, "k", 7, 2)
        assert (got.parent, got.trace, got.owner, got.attempt) == (parent, "t-1", self.me, 1)
        assert got.fence > 0
        assert not got.redelivered
        assert got.enqueued_at is not None
        assert await self.settle(harness, got, Completed()) is Verdict.ACCEPTED
        await harness.expect_depth(waiting=0, delayed=0, running=0)

    async def test_nothing_published_is_nothing(self, harness: Harness) -> None:
        assert await harness.broker.publish([]) == []
        assert await harness.broker.settle([]) == []
        assert list(await harness.broker.renew([])) == []
        assert list(await harness.broker.cancel_requested([])) == []
        assert await harness.broker.cancel([]) == 0
        assert await harness.broker.replay([]) == 0
        assert await harness.broker.purge([]) == 0
        await harness.broker.mark_started([])
        assert await harness.broker.sweep([]) == Swept()

    async def test_an_empty_queue_gives_nothing(self, harness: Harness) -> None:
        assert await harness.broker.claim(QUEUE, self.me, 5) == []
        await harness.broker.publish([message()])
        assert await harness.broker.claim(QUEUE, self.me, 0) == []

    async def test_a_claim_takes_no_more_than_its_limit(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(5)])
        assert len(await harness.broker.claim(QUEUE, self.me, 3)) == 3
        await harness.expect_depth(waiting=2, delayed=0, running=3)

    async def test_a_line_is_first_in_first_out(self, harness: Harness) -> None:
        first = [message(key=None if n % 3 else f"k{99 - n}") for n in range(50)]
        await harness.broker.publish(first)
        second = [message() for _ in range(3)]
        for each in second:
            await harness.broker.publish([each])
        got = [each.id for _ in range(6) for each in await harness.broker.claim(QUEUE, self.me, 10)]
        assert got == [each.id for each in (*first, *second)]

    async def test_a_higher_lane_goes_first(self, harness: Harness) -> None:
        low, normal, high = message(lane=Lane.LOW), message(), message(lane=Lane.HIGH)
        await harness.broker.publish([low, normal, high])
        got = await harness.broker.claim(QUEUE, self.me, 10)
        assert [each.id for each in got] == [high.id, normal.id, low.id]

    async def test_queues_do_not_mix(self, harness: Harness) -> None:
        elsewhere = message(queue="elsewhere")
        await harness.broker.publish([elsewhere, message()])
        await self.one(harness)
        (got,) = await harness.broker.claim(elsewhere.queue, self.me, 10)
        assert got.id == elsewhere.id

    async def test_bulk_publish_and_claim(self, harness: Harness) -> None:
        sent = [message(args={"n": n}) for n in range(3_000)]
        answers = await harness.broker.publish(sent)
        assert [each.id for each in answers] == [each.id for each in sent]
        got: list[Delivery] = []
        while batch := await harness.broker.claim(QUEUE, self.me, 700):
            got += batch
        assert [each.args["n"] for each in got] == list(range(3_000))
        verdicts = await harness.broker.settle([settlement(each, Completed()) for each in got])
        assert set(verdicts) == {Verdict.ACCEPTED}
        await harness.expect_depth(waiting=0, delayed=0, running=0)

    async def test_claimers_never_share_a_message(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(200)])
        others = [await harness.peer() for _ in range(4)]

        async def drain(at: int) -> list[Delivery]:
            mine: list[Delivery] = []
            owner = new_process_id()
            while batch := await others[at].claim(QUEUE, owner, 7):
                mine += batch
            return mine

        taken = [each for got in await asyncio.gather(*(drain(at) for at in range(4))) for each in got]
        # A claimer that met only locked rows went away empty-handed: nothing is lost by that.
        taken += await harness.broker.claim(QUEUE, self.me, 200)
        assert len(taken) == len({each.id for each in taken}) == 200

    async def test_the_same_publish_twice_is_one_message(self, harness: Harness) -> None:
        plain, keyed = message(), message(key="k")
        await harness.broker.publish([plain, keyed])
        assert [each.id for each in await harness.broker.publish([plain, keyed])] == [plain.id, keyed.id]
        await harness.expect_depth(waiting=2, delayed=0, running=0)

    async def test_what_no_carrier_can_hold_is_refused(self, harness: Harness) -> None:
        for bad in (
            message(args={"text": "nul \x00"}),
            message(args={"text": "half \ud800"}),
            message(args={"nul \x00": 1}),
            message(args={"number": float("nan")}),
            message(key="k" * 513),
            message(task=""),
            message(queue="no such {name}"),
            message(cost=0),
            message(delay_seconds=-1),
            message(args={"long": "x" * 70_000}),
        ):
            with pytest.raises(InvalidInput):
                await harness.broker.publish([bad])
        await harness.expect_depth(waiting=0, delayed=0, running=0)

    # dedup

    async def test_a_key_that_waits_gives_the_first_id(self, harness: Harness) -> None:
        first = message(key="k")
        await harness.broker.publish([first])
        (again,) = await harness.broker.publish([message(key="k")])
        assert again == Published(id=first.id, duplicate=True)
        await harness.expect_depth(waiting=1, delayed=0, running=0)

    async def test_a_key_twice_in_one_batch(self, harness: Harness) -> None:
        first, plain, second = message(key="k"), message(), message(key="k")
        assert await harness.broker.publish([first, plain, second]) == [
            Published(id=first.id),
            Published(id=plain.id),
            Published(id=first.id, duplicate=True),
        ]
        await harness.expect_depth(waiting=2, delayed=0, running=0)

    async def test_a_key_is_of_one_tenant_and_task(self, harness: Harness) -> None:
        answers = await harness.broker.publish(
            [
                message(key="k"),
                message(key="k", tenant=ACME),
                message(key="k", tenant=OTHER),
                message(key="k", task="another"),
            ]
        )
        assert not any(each.duplicate for each in answers)

    async def test_a_key_that_is_delayed_gives_the_first_id(self, harness: Harness) -> None:
        first = message(key="k", delay_seconds=30)
        await harness.broker.publish([first])
        (again,) = await harness.broker.publish([message(key="k")])
        assert again == Published(id=first.id, duplicate=True)
        await harness.expect_depth(waiting=0, delayed=1, running=0)

    async def test_a_publish_while_it_runs_makes_it_run_again(self, harness: Harness) -> None:
        await harness.broker.publish([message(key="k", max_attempts=1)])
        first = await self.one(harness)
        (again,) = await harness.broker.publish([message(key="k")])
        assert again == Published(id=first.id, duplicate=True)
        assert await self.settle(harness, first, Completed()) is Verdict.RERUN
        second = await self.one(harness)
        assert (second.id, second.attempt) == (first.id, 1)
        assert second.fence > first.fence
        assert await self.settle(harness, second, Completed()) is Verdict.ACCEPTED
        assert await harness.broker.claim(QUEUE, self.me, 1) == []

    async def test_a_dropped_publish_leaves_no_trace(self, harness: Harness) -> None:
        await harness.broker.publish([message(key="k")])
        first = await self.one(harness)
        (again,) = await harness.broker.publish([message(key="k", while_running="drop")])
        assert again == Published(id=first.id, duplicate=True)
        assert await self.settle(harness, first, Completed()) is Verdict.ACCEPTED
        await harness.expect_depth(waiting=0, delayed=0, running=0)

    async def test_a_failed_run_is_run_again_for_a_later_publish(self, harness: Harness) -> None:
        await harness.broker.publish([message(key="k")])
        first = await self.one(harness)
        await harness.broker.publish([message(key="k")])
        assert await self.settle(harness, first, Failed(error=ERROR)) is Verdict.RERUN
        assert (await self.one(harness)).attempt == 1
        assert await harness.broker.dead_letters() == []

    async def test_a_key_is_free_after_the_end(self, harness: Harness) -> None:
        for outcome in (Completed(), Failed(error=ERROR), Cancelled()):
            await harness.broker.publish([message(key="k")])
            await self.settle(harness, await self.one(harness), outcome)
        (again,) = await harness.broker.publish([message(key="k")])
        assert not again.duplicate

    async def test_two_publishers_of_one_key_make_one_message(self, harness: Harness) -> None:
        peers = [await harness.peer() for _ in range(4)]
        answers = await asyncio.gather(
            *(peer.publish([message(key=f"k{n}") for n in range(20)]) for peer in peers)
        )
        await harness.expect_depth(waiting=20, delayed=0, running=0)
        for position in range(20):
            assert len({each[position].id for each in answers}) == 1
            assert sum(not each[position].duplicate for each in answers) == 1

    # delay and expiry

    async def test_a_delayed_message_waits_for_its_time(self, harness: Harness) -> None:
        await harness.broker.publish([message(delay_seconds=30)])
        await harness.broker.sweep([QUEUE])
        assert await harness.broker.claim(QUEUE, self.me, 1) == []
        await harness.expect_depth(waiting=0, delayed=1, running=0)
        await harness.pass_time(31)
        assert (await harness.broker.sweep([QUEUE])).due == 1
        assert (await self.one(harness)).attempt == 1

    async def test_a_due_message_is_promoted_once(self, harness: Harness) -> None:
        await harness.broker.publish([message(delay_seconds=30) for _ in range(100)])
        await harness.pass_time(31)
        peers = [await harness.peer() for _ in range(4)]
        swept = await asyncio.gather(*(each.sweep([QUEUE]) for each in peers))
        assert sum(each.due for each in swept) == 100
        await harness.expect_depth(waiting=100, delayed=0, running=0)

    async def test_an_expired_message_does_not_run(self, harness: Harness) -> None:
        await harness.broker.publish([message(key="k", expires_seconds=20), message(expires_seconds=60)])
        await harness.pass_time(21)
        got = await self.one(harness)
        await self.settle(harness, got, Completed())
        await harness.broker.sweep([QUEUE])
        await harness.expect_depth(waiting=0, delayed=0, running=0)
        (again,) = await harness.broker.publish([message(key="k")])
        assert not again.duplicate

    # retry

    async def test_a_retry_runs_again_after_its_delay(self, harness: Harness) -> None:
        await harness.broker.publish([message(args={"n": 1}, key="k")])
        first = await self.one(harness)
        retry = Retrying(delay_seconds=10, error=ERROR)
        assert await self.settle(harness, first, retry) is Verdict.ACCEPTED
        await harness.expect_depth(waiting=0, delayed=1, running=0)
        assert (await harness.broker.publish([message(key="k")]))[0].id == first.id
        await harness.pass_time(11)
        await harness.broker.sweep([QUEUE])
        second = await self.one(harness)
        assert (second.id, second.attempt, second.args) == (first.id, 2, {"n": 1})
        assert second.fence > first.fence

    async def test_the_last_retry_is_the_end(self, harness: Harness) -> None:
        await harness.broker.publish([message(max_attempts=2)])
        for _ in range(2):
            await self.settle(harness, await self.one(harness), Retrying(delay_seconds=1, error=ERROR))
            await harness.pass_time(2)
            await harness.broker.sweep([QUEUE])
        await harness.expect_depth(waiting=0, delayed=0, running=0)
        (letter,) = await harness.broker.dead_letters()
        assert letter.error == ErrorRecord(kind=ErrorKind.EXHAUSTED, code=ERROR.code, summary=ERROR.summary)
        assert letter.attempts == 2

    # release

    async def test_a_released_message_burns_no_attempt(self, harness: Harness) -> None:
        await harness.broker.publish([message(max_attempts=1, key="k")])
        for _ in range(5):
            got = await self.one(harness)
            assert got.attempt == 1
            assert not got.redelivered
            await harness.broker.mark_started([got])
            assert await self.settle(harness, got, Released()) is Verdict.ACCEPTED
        await harness.expect_depth(waiting=1, delayed=0, running=0)
        assert (await harness.broker.publish([message(key="k")]))[0].duplicate

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
        for leave in ("retry", "release", "death", "crash"):
            await harness.broker.publish([message(key="k")])
            got = await self.one(harness)
            await harness.broker.publish([message(key="k")])  # to run again: the cancellation forgets it
            await harness.broker.cancel([got.id])
            match leave:
                case "retry":
                    await self.settle(harness, got, Retrying(delay_seconds=0, error=ERROR))
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

    # counts, waiting, cancellation

    async def test_depth_counts_each_once(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(6)] + [message(delay_seconds=99)] * 1)
        running = await harness.broker.claim(QUEUE, self.me, 3)
        await self.settle(harness, running[0], Retrying(delay_seconds=99, error=ERROR))
        await harness.pass_time(7)
        await harness.expect_depth(waiting=3, delayed=2, running=2)
        depth = await harness.broker.depth(QUEUE)
        assert depth.oldest_seconds is not None
        assert 6 <= depth.oldest_seconds < 60
        assert (await harness.broker.depth(message(queue="empty").queue)).oldest_seconds is None

    async def test_wait_returns_when_the_time_is_over(self, harness: Harness) -> None:
        async with asyncio.timeout(20):
            await harness.broker.wait(QUEUE, 0.01)

    async def test_wait_wakes_for_a_message(self, harness: Harness) -> None:
        peer = await harness.peer()

        async def consume() -> Delivery:
            while True:
                if got := await harness.broker.claim(QUEUE, self.me, 1):
                    return got[0]
                await harness.broker.wait(QUEUE, 5)

        async with asyncio.timeout(20):
            _, got = await asyncio.gather(peer.publish([message()]), consume())
        assert got.attempt == 1

    async def test_a_cancelled_claim_loses_nothing(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(30)])
        got: list[Delivery] = []
        for step in range(10):
            call = asyncio.ensure_future(harness.broker.claim(QUEUE, self.me, 3))
            for _ in range(step):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            if not call.cancelled() and call.exception() is None:
                got += call.result()
        await harness.pass_time(61)
        await harness.broker.sweep([QUEUE])
        again = await harness.broker.claim(QUEUE, self.somebody, 100)
        assert len({each.id for each in again}) == 30
        assert all(each.attempt == 1 for each in again)

    async def test_progress_is_recorded_while_it_runs(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        got = await self.one(harness)
        assert await harness.broker.progress(got, stage="half way", done=1, total=2)
        await self.settle(harness, got, Completed())
        assert not await harness.broker.progress(got, stage="after the end", done=2, total=2)
