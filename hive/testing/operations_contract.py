"""What an operator can do with a queue: pause it, cancel by filter, look at backlogs, bound its depth.

Derive a class as for ``BrokerContract``; the harness then also makes brokers with a limit
(``OperationsHarness``).
"""

from typing import Protocol

import pytest

from hive.broker.port import Broker, Lane, Settlement, Swept, Verdict
from hive.errors import InvalidInput, QueueFull
from hive.ids import QueueName, TaskName, TenantId, new_message_id, new_process_id
from hive.outcomes import Completed, Released, Retrying
from hive.testing.contract_steps import ACME, ERROR, OTHER
from hive.testing.harness import QUEUE, Harness, message

ELSEWHERE = QueueName("elsewhere")


class OperationsHarness(Harness, Protocol):
    """A harness that can bound how much waits."""

    async def limited(self, most: int) -> Broker:
        """The same store as a process sees it that lets at most ``most`` messages wait in ``QUEUE``."""
        ...


class OperationsContract:
    """One method a promise."""

    me = new_process_id()

    # pause

    async def test_a_paused_queue_hands_out_nothing_in_any_process(self, harness: Harness) -> None:
        await harness.broker.publish([message(), message(), message(queue=ELSEWHERE)])
        (running,) = await harness.broker.claim(QUEUE, self.me, 1)
        await harness.broker.pause(QUEUE)
        await harness.broker.pause(QUEUE)
        peer = await harness.peer()
        assert await peer.paused() == {QUEUE}
        await peer.publish([message(lane=Lane.HIGH)])
        for broker in (harness.broker, peer):
            assert await broker.claim(QUEUE, self.me, 10) == []
        assert len(await peer.claim(ELSEWHERE, self.me, 10)) == 1
        # What runs goes on.
        assert list(await peer.renew([running])) == []
        settled = Settlement(delivery=running, outcome=Completed())
        assert await peer.settle([settled]) == [Verdict.ACCEPTED]
        await harness.expect_depth(waiting=2, delayed=0, running=0)

    async def test_a_resumed_queue_goes_on(self, harness: Harness) -> None:
        await harness.broker.publish([message() for _ in range(3)])
        await harness.broker.pause(QUEUE)
        assert await harness.broker.claim(QUEUE, self.me, 10) == []
        peer = await harness.peer()
        await peer.resume(QUEUE)
        await peer.resume(QUEUE)
        assert await harness.broker.paused() == frozenset()
        assert len(await harness.broker.claim(QUEUE, self.me, 10)) == 3

    async def test_upkeep_goes_on_while_paused(self, harness: Harness) -> None:
        await harness.broker.publish([message(), message(delay_seconds=30)])
        await harness.broker.claim(QUEUE, self.me, 1)
        await harness.broker.pause(QUEUE)
        await harness.pass_time(61)
        swept = await harness.broker.sweep([QUEUE])
        assert (swept.due, swept.expired) == (1, 1)
        await harness.expect_depth(waiting=2, delayed=0, running=0)
        assert await harness.broker.claim(QUEUE, self.me, 10) == []

    # upkeep in doubt

    async def test_a_sweep_that_spares_leases_still_promotes(self, harness: Harness) -> None:
        await harness.broker.publish([message(), message(delay_seconds=30)])
        (running,) = await harness.broker.claim(QUEUE, self.me, 1)
        await harness.pass_time(100)
        assert await harness.broker.sweep([QUEUE], expire_leases=False) == Swept(due=1)
        await harness.expect_depth(waiting=1, delayed=0, running=1)
        assert list(await harness.broker.renew([running])) == []
        assert await harness.broker.sweep([QUEUE]) == Swept()

    # cancel by filter

    async def test_cancelling_everything_is_refused(self, harness: Harness) -> None:
        await harness.broker.publish([message()])
        with pytest.raises(InvalidInput):
            await harness.broker.cancel_where()
        await harness.expect_depth(waiting=1, delayed=0, running=0)

    async def test_a_filter_finds_whatever_waits_or_runs(self, harness: Harness) -> None:
        sent = [message(tenant=ACME, key=f"k{n}") for n in range(2)]
        await harness.broker.publish(sent)
        retried, running = await harness.broker.claim(QUEUE, self.me, 2)
        retry = Retrying(delay_seconds=30, error=ERROR)
        await harness.broker.settle([Settlement(delivery=retried, outcome=retry)])
        await harness.broker.publish(
            [
                message(tenant=ACME, key="k2"),
                message(tenant=ACME, key="k3", lane=Lane.LOW),
                message(tenant=ACME, key="k4", delay_seconds=30),
                message(tenant=OTHER, key="k2"),
                message(key="k2"),
            ]
        )
        assert await harness.broker.cancel_where(tenant=ACME) == 5
        await harness.expect_depth(waiting=2, delayed=0, running=1)
        assert list(await harness.broker.cancel_requested([running])) == [running]
        assert await harness.broker.cancel_where(tenant=ACME) == 0, "nothing new to cancel"
        await harness.broker.settle([Settlement(delivery=running, outcome=Released())])
        await harness.pass_time(31)
        await harness.broker.sweep([QUEUE])
        await harness.expect_depth(waiting=2, delayed=0, running=0)
        again = await harness.broker.publish([message(tenant=ACME, key=f"k{n}") for n in range(5)])
        assert not any(each.duplicate for each in again)

    async def test_filters_narrow_each_other(self, harness: Harness) -> None:
        def each() -> list[tuple[QueueName, TenantId | None, str]]:
            return [
                (queue, tenant, task)
                for queue in (QUEUE, ELSEWHERE)
                for tenant in (ACME, OTHER, None)
                for task in ("task", "another")
            ]

        await harness.broker.publish(
            [message(queue=queue, tenant=tenant, task=task) for queue, tenant, task in each()]
        )
        broker, another = harness.broker, TaskName("another")
        assert await broker.cancel_where(queue=QUEUE, tenant=ACME, task=another) == 1
        assert await broker.cancel_where(queue=QUEUE, tenant=ACME) == 1
        assert await broker.cancel_where(queue=QUEUE, task=another) == 2
        assert await broker.cancel_where(tenant=OTHER, task=another) == 1
        assert await broker.cancel_where(tenant=OTHER) == 2
        assert await broker.cancel_where(queue=QUEUE) == 1
        assert await broker.cancel_where(task=another) == 2
        assert await broker.cancel_where(queue=ELSEWHERE) == 2

    async def test_many_are_cancelled_in_one_call(self, harness: Harness) -> None:
        await harness.broker.publish([message(tenant=ACME) for _ in range(2_300)])
        await harness.broker.publish([message(tenant=OTHER) for _ in range(2)])
        assert await harness.broker.cancel_where(queue=QUEUE, tenant=ACME) == 2_300
        await harness.expect_depth(waiting=2, delayed=0, running=0)
        assert len(await harness.broker.claim(QUEUE, self.me, 10)) == 2

    # views

    async def test_a_backlog_is_paged_by_tenant(self, harness: Harness) -> None:
        await harness.broker.publish([message(tenant=ACME), message(tenant=ACME)])
        await harness.broker.claim(QUEUE, self.me, 1)
        tenants = [TenantId(f"t{n:02}") for n in range(8)]
        await harness.broker.publish([message(tenant=each) for each in tenants])
        await harness.broker.publish([message(), message(tenant=OTHER, delay_seconds=60)])
        await harness.broker.publish([message(tenant=TenantId("foreign"), queue=ELSEWHERE)])
        await harness.pass_time(7)
        found = [each for each in await harness.broker.backlog(QUEUE) if each.waiting or each.running]
        assert [(each.tenant, each.waiting, each.running) for each in found] == [
            (None, 1, 0),
            (ACME, 1, 1),
            *((each, 1, 0) for each in tenants),
        ]
        assert all(each.oldest_seconds is not None and 6 < each.oldest_seconds < 60 for each in found)
        paged: list[TenantId | None] = []
        page = await harness.broker.backlog(QUEUE, limit=3)
        while page:
            assert len(page) <= 3
            paged += [each.tenant for each in page if each.waiting or each.running]
            page = await harness.broker.backlog(QUEUE, after=page[-1].tenant or TenantId(""), limit=3)
        assert paged == [each.tenant for each in found]

    async def test_a_position_counts_what_stands_before(self, harness: Harness) -> None:
        sent = [message(tenant=ACME) for _ in range(5)]
        await harness.broker.publish([message(tenant=OTHER) for _ in range(3)])
        await harness.broker.publish(sent)
        later = message(tenant=ACME, delay_seconds=30)
        await harness.broker.publish([later])
        assert [await harness.broker.position(each.id) for each in sent] == [0, 1, 2, 3, 4]
        assert await harness.broker.position(later.id) is None
        assert await harness.broker.position(new_message_id()) is None
        await harness.broker.cancel([sent[1].id])
        assert await harness.broker.position(sent[1].id) is None
        assert await harness.broker.position(sent[4].id) == 3
        await harness.broker.claim(QUEUE, self.me, 100)
        assert await harness.broker.position(sent[4].id) is None

    async def test_counts_stop_at_ten_thousand(self, harness: Harness) -> None:
        await harness.broker.publish([message(tenant=ACME) for _ in range(10_050)])
        last = message(tenant=ACME)
        await harness.broker.publish([last])
        assert (await harness.broker.depth(QUEUE)).waiting == 10_001
        assert await harness.broker.position(last.id) == 10_001
        (backlog,) = await harness.broker.backlog(QUEUE)
        assert backlog.waiting == 10_001

    # depth

    async def test_a_full_queue_refuses_all_of_a_batch(self, harness: OperationsHarness) -> None:
        broker = await harness.limited(5)
        await broker.publish([message() for _ in range(3)])
        with pytest.raises(QueueFull):
            await broker.publish([message(queue=ELSEWHERE), *(message() for _ in range(3))])
        await harness.expect_depth(waiting=3, delayed=0, running=0)
        assert (await broker.depth(ELSEWHERE)).waiting == 0
        await broker.publish([message(), message(delay_seconds=30)])
        with pytest.raises(QueueFull):
            await broker.publish([message()])
        # Whoever has no limit set, publishes.
        await harness.broker.publish([message()])
        await harness.expect_depth(waiting=5, delayed=1, running=0)

    async def test_a_queue_that_was_full_takes_more_once_it_is_worked_off(
        self, harness: OperationsHarness
    ) -> None:
        broker = await harness.limited(2)
        await broker.publish([message(), message()])
        with pytest.raises(QueueFull):
            await broker.publish([message()])
        got = await broker.claim(QUEUE, self.me, 1)
        await broker.publish([message()])
        with pytest.raises(QueueFull):
            await broker.publish([message()])
        await broker.settle([Settlement(delivery=each, outcome=Released()) for each in got])
        await harness.expect_depth(waiting=3, delayed=0, running=0)

    # waking

    async def test_a_quiet_publish_is_found_by_the_next_claim(self, harness: Harness) -> None:
        sent = [message(), message(key="k")]
        await harness.broker.publish(sent, notify=False)
        got = await harness.broker.claim(QUEUE, self.me, 10)
        assert [each.id for each in got] == [each.id for each in sent]
