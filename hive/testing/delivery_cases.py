"""From publish to the end: what is sent arrives once, in order, at its time, and is counted."""

import asyncio

import pytest

from hive.broker.port import Delivery, Lane, Published, Swept, Verdict
from hive.errors import InvalidInput
from hive.ids import new_message_id, new_process_id
from hive.outcomes import Completed, ErrorKind, ErrorRecord, Released, Retrying
from hive.testing.contract_steps import ACME, ERROR, THROTTLED, Steps, settlement
from hive.testing.harness import QUEUE, Harness, message


class Deliveries(Steps):
    """What happens to a message that is sent, claimed and settled."""

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

    async def test_what_is_throttled_waits_and_burns_no_attempt(self, harness: Harness) -> None:
        await harness.broker.publish([message(max_attempts=2, key="k")])
        await self.settle(harness, await self.one(harness), Retrying(delay_seconds=1, error=ERROR))
        wait = Retrying(delay_seconds=10, error=THROTTLED, charged=False)
        for _ in range(6):
            await harness.pass_time(11)
            await harness.broker.sweep([QUEUE])
            got = await self.one(harness)
            assert (got.attempt, got.redelivered) == (2, False)
            await harness.broker.mark_started([got])
            await harness.broker.publish([message(key="k")])  # its next run will see what is new
            assert await self.settle(harness, got, wait) is Verdict.ACCEPTED
            await harness.expect_depth(waiting=0, delayed=1, running=0)
            assert (await harness.broker.publish([message(key="k")]))[0].duplicate
        assert await harness.broker.dead_letters() == []
        await harness.pass_time(11)
        await harness.broker.sweep([QUEUE])
        await self.settle(harness, await self.one(harness), Retrying(delay_seconds=1, error=ERROR))
        (letter,) = await harness.broker.dead_letters()
        assert (letter.error.kind, letter.attempts) == (ErrorKind.EXHAUSTED, 2)

    async def test_what_is_throttled_ends_when_it_expires(self, harness: Harness) -> None:
        await harness.broker.publish([message(expires_seconds=30)])
        wait = Retrying(delay_seconds=20, error=THROTTLED, charged=False)
        for _ in range(2):
            await self.settle(harness, await self.one(harness), wait)
            await harness.expect_depth(waiting=0, delayed=1, running=0)
            await harness.pass_time(21)
            await harness.broker.sweep([QUEUE])
            await harness.broker.sweep([QUEUE])
            if not (await harness.broker.depth(QUEUE)).waiting:
                break
        await harness.expect_depth(waiting=0, delayed=0, running=0)

    async def test_a_throttled_message_gives_its_resource_back(self, harness: Harness) -> None:
        await harness.broker.publish([message(resource="r"), message(resource="r")])
        first = await self.one(harness)
        await self.settle(harness, first, Retrying(delay_seconds=10, error=THROTTLED, charged=False))
        assert (await self.one(harness)).id != first.id

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

    async def test_a_released_message_keeps_the_attempts_it_had(self, harness: Harness) -> None:
        await harness.broker.publish([message(max_attempts=3)])
        await self.settle(harness, await self.one(harness), Retrying(delay_seconds=1, error=ERROR))
        await harness.pass_time(2)
        await harness.broker.sweep([QUEUE])
        for _ in range(3):
            got = await self.one(harness)
            assert got.attempt == 2
            assert await self.settle(harness, got, Released()) is Verdict.ACCEPTED

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
