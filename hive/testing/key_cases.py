"""Deduplication: of the messages with one key one waits, and a later one makes it run again."""

import asyncio

from hive.broker.port import Published, Verdict
from hive.outcomes import Cancelled, Completed, Failed
from hive.testing.contract_steps import ACME, ERROR, OTHER, Steps
from hive.testing.harness import QUEUE, Harness, message


class Keys(Steps):
    """Of the messages of one tenant and task with one key, one waits."""

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
