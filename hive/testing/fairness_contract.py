"""What a broker promises to those who share it: lanes, tenants with weights and costs, resources.

Derive a class as for ``BrokerContract``; the harness then also sets weights (``FairnessHarness``).

A carrier may be fair when it hands out (the ledger), or when it admits to a line of twice the live slots (the
stream). Both keep the bounds that stand here.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol

import pytest

from hive.broker.port import Broker, Delivery, Lane, Message, Settlement
from hive.ids import ProcessId, TenantId, new_process_id
from hive.outcomes import Cancelled, Completed, Failed, Outcome, Released, Retrying
from hive.testing.contract_steps import ACME, ERROR, OTHER
from hive.testing.harness import QUEUE, Harness, message

RETRY = Retrying(delay_seconds=30, error=ERROR)


class FairnessHarness(Harness, Protocol):
    """A harness that knows tenants."""

    async def set_weight(self, tenant: TenantId, weight: int) -> None:
        """Give ``tenant`` so many parts of what is shared; the broker knows when this returns."""
        ...


class Shop:
    """A process with slots: what it holds ends in the order in which it began."""

    def __init__(self, broker: Broker, slots: int) -> None:
        self.broker = broker
        self.slots = slots
        self.owner: ProcessId = new_process_id()
        self.held: deque[Delivery] = deque()
        self.began: list[Delivery] = []

    async def open(self) -> "Shop":
        """Say how many slots there are."""
        await self.broker.announce(self.owner, {QUEUE: self.slots})
        return self

    async def fill(self) -> Sequence[Delivery]:
        """Claim for every free slot."""
        free = self.slots - len(self.held)
        got = await self.broker.claim(QUEUE, self.owner, free) if free else []
        self.held += got
        self.began += got
        return got

    async def turn(self, count: int = 1) -> Sequence[Delivery]:
        """End the oldest ``count``, and fill their slots."""
        ended = [self.held.popleft() for _ in range(min(count, len(self.held)))]
        await self.broker.settle([Settlement(delivery=each, outcome=Completed()) for each in ended])
        return await self.fill()


class FairnessContract:
    """One method a promise."""

    me = new_process_id()

    async def ready(self, harness: Harness, slots: int = 400) -> None:
        """Slots for all that a case publishes: its limit is the claim's, not a line's."""
        await harness.broker.announce(self.me, {QUEUE: slots})

    async def settle(self, harness: Harness, delivery: Delivery, outcome: Outcome) -> None:
        """Settle one delivery."""
        await harness.broker.settle([Settlement(delivery=delivery, outcome=outcome)])

    # lanes

    async def test_lanes_are_served_six_to_three_to_one(self, harness: Harness) -> None:
        await self.ready(harness)
        await harness.broker.publish([message(lane=lane) for lane in Lane for _ in range(60)])
        for _ in range(2):
            got = Counter(each.lane for each in await harness.broker.claim(QUEUE, self.me, 20))
            assert got == {Lane.HIGH: 12, Lane.NORMAL: 6, Lane.LOW: 2}

    async def test_lanes_keep_their_parts_in_claims_of_one(self, harness: Harness) -> None:
        await self.ready(harness)
        await harness.broker.publish([message(lane=lane) for lane in Lane for _ in range(60)])
        got: list[Lane] = []
        for _ in range(60):
            (each,) = await harness.broker.claim(QUEUE, self.me, 1)
            got.append(each.lane)
            await self.settle(harness, each, Completed())
        assert [got.count(each) for each in Lane] == [
            pytest.approx(36, abs=3),
            pytest.approx(18, abs=3),
            pytest.approx(6, abs=2),
        ]
        # None of them waits long for its turn.
        assert all(Lane.LOW in got[at : at + 20] for at in range(0, 60, 20))

    async def test_what_a_lane_does_not_use_goes_to_the_others(self, harness: Harness) -> None:
        await self.ready(harness)
        await harness.broker.publish([message(lane=Lane.LOW) for _ in range(40)])
        assert len(await harness.broker.claim(QUEUE, self.me, 15)) == 15
        await harness.broker.publish([message(lane=Lane.HIGH) for _ in range(2)])
        got = Counter(each.lane for each in await harness.broker.claim(QUEUE, self.me, 10))
        assert got == {Lane.HIGH: 2, Lane.LOW: 8}

    # tenants

    async def test_a_single_message_passes_a_flood(self, harness: Harness) -> None:
        shop = await Shop(harness.broker, 4).open()
        await harness.broker.publish([message(tenant=ACME) for _ in range(200)])
        await shop.fill()
        await harness.broker.publish([message(tenant=OTHER)])
        assert await self._others_before(shop, OTHER) <= 2 * shop.slots

    async def test_a_single_message_passes_a_hundred_busy_tenants(self, harness: Harness) -> None:
        shop = await Shop(harness.broker, 4).open()
        busy = [TenantId(f"busy_{n:03}") for n in range(100)]
        await harness.broker.publish([message(tenant=each) for _ in range(5) for each in busy])
        for _ in range(10):
            await shop.turn()
        await harness.broker.publish([message(tenant=OTHER)])
        assert await self._others_before(shop, OTHER) <= 2 * shop.slots + len(busy)

    async def _others_before(self, shop: Shop, tenant: TenantId) -> int:
        """How many of others' begin before ``tenant``'s first."""
        before = len(shop.began)
        while not any(each.tenant == tenant for each in shop.began):
            assert await shop.turn(), "a slot stays empty beside a message that waits"
        return next(at for at, each in enumerate(shop.began) if each.tenant == tenant) - before

    async def test_a_lone_tenant_fills_every_slot_of_every_process(self, harness: Harness) -> None:
        shops = [await Shop(await harness.peer(), 6).open() for _ in range(3)]
        await harness.broker.publish([message(tenant=ACME) for _ in range(200)])
        for shop in shops:
            await shop.fill()
        for turn in range(20):
            for shop in shops:
                assert len(shop.held) == shop.slots
                await shop.turn(1 + turn % 3)

    async def test_tenants_with_work_share_alike(self, harness: Harness) -> None:
        began = await self._compete(harness, {ACME: 1, OTHER: 1}, slots=8)
        assert began[ACME] == pytest.approx(began[OTHER], rel=0.2)

    async def test_shares_go_by_weight(self, harness: FairnessHarness) -> None:
        await harness.set_weight(ACME, 3)
        await harness.set_weight(OTHER, 1)
        began = await self._compete(harness, {ACME: 1, OTHER: 1}, slots=8)
        assert 2.2 < began[ACME] / began[OTHER] < 4

    async def test_what_costs_more_begins_less_often(self, harness: Harness) -> None:
        began = await self._compete(harness, {ACME: 4, OTHER: 1}, slots=10)
        assert 2.5 < began[OTHER] / began[ACME] < 6

    async def test_system_work_is_one_among_the_tenants(self, harness: Harness) -> None:
        began = await self._compete(harness, {None: 1, ACME: 1}, slots=8)
        assert began[None] == pytest.approx(began[ACME], rel=0.2)

    async def _compete(
        self, harness: Harness, costs: dict[TenantId | None, int], *, slots: int
    ) -> Counter[TenantId | None]:
        """Two floods beside each other; how many of each began once the beginning was over."""
        shop = await Shop(harness.broker, slots).open()
        for tenant, cost in costs.items():
            await harness.broker.publish([message(tenant=tenant, cost=cost) for _ in range(160)])
        await shop.fill()
        for _ in range(40):
            await shop.turn()
        first = len(shop.began)
        for _ in range(120):
            await shop.turn()
        return Counter(each.tenant for each in shop.began[first:])

    async def test_what_does_not_wait_holds_no_share(self, harness: Harness) -> None:
        await harness.broker.publish([message(tenant=OTHER) for _ in range(30)])
        first = await Shop(harness.broker, 30).open()
        for each in await first.fill():
            await self.settle(harness, each, RETRY)
        await harness.broker.publish([message(tenant=OTHER, delay_seconds=60) for _ in range(30)])
        await harness.broker.announce(first.owner, {QUEUE: 0})
        shop = await Shop(harness.broker, 6).open()
        await harness.broker.publish([message(tenant=ACME) for _ in range(40)])
        await shop.fill()
        for _ in range(20):
            assert [each.tenant for each in shop.held] == [ACME] * shop.slots
            await shop.turn()

    # resources

    async def test_one_resource_runs_once(self, harness: Harness) -> None:
        await self.ready(harness)
        sent = [message(tenant=ACME, resource="r") for _ in range(3)]
        await harness.broker.publish(sent)
        for each in sent:
            (got,) = await harness.broker.claim(QUEUE, self.me, 10)
            assert got.id == each.id
            assert await harness.broker.claim(QUEUE, self.me, 10) == []
            await self.settle(harness, got, Completed())
        assert await harness.broker.claim(QUEUE, self.me, 10) == []

    async def test_a_resource_is_of_one_tenant(self, harness: Harness) -> None:
        await self.ready(harness)
        tenants = {ACME, OTHER, None}
        await harness.broker.publish([message(tenant=each, resource="r") for each in tenants])
        assert {each.tenant for each in await harness.broker.claim(QUEUE, self.me, 10)} == tenants

    async def test_a_resource_spans_queues(self, harness: Harness) -> None:
        await self.ready(harness)
        elsewhere = message(queue="elsewhere", tenant=ACME, resource="r")
        await harness.broker.publish([message(tenant=ACME, resource="r"), elsewhere])
        (got,) = await harness.broker.claim(QUEUE, self.me, 10)
        assert await harness.broker.claim(elsewhere.queue, self.me, 10) == []
        await self.settle(harness, got, Completed())
        assert len(await harness.broker.claim(elsewhere.queue, self.me, 10)) == 1

    async def test_a_resource_is_free_after_every_end(self, harness: Harness) -> None:
        await self.ready(harness)
        for outcome in (Completed(), Failed(error=ERROR), Cancelled(), RETRY, None):
            await harness.broker.publish([message(tenant=ACME, resource="r"), self._plain()])
            got = await harness.broker.claim(QUEUE, self.me, 10)
            held = next(each for each in got if each.resource == "r")
            assert len(got) == 2
            if outcome is None:
                assert await harness.broker.owner_died(self.me) == 2
            else:
                for each in got:
                    await self.settle(harness, each, outcome if each is held else Completed())
        await self.ready(harness)  # the dead one's slots died with it
        (again, _) = await harness.broker.claim(QUEUE, self.me, 10)
        await self.settle(harness, again, Released())
        assert len(await harness.broker.claim(QUEUE, self.me, 10)) == 1

    def _plain(self) -> Message:
        return message(tenant=ACME)

    async def test_a_blocked_message_holds_up_nobody(self, harness: Harness) -> None:
        shop = await Shop(harness.broker, 6).open()
        await harness.broker.publish([message(tenant=ACME, resource="r") for _ in range(60)])
        await harness.broker.publish([message(tenant=ACME) for _ in range(30)])
        await harness.broker.publish([message(tenant=OTHER) for _ in range(60)])
        while len(shop.held) < shop.slots:
            assert await shop.fill(), "a slot stays empty beside a message that could run"
        for _ in range(40):
            await shop.turn()
            while len(shop.held) < shop.slots:
                assert await shop.fill(), "a slot stays empty beside a message that could run"
            assert sum(each.resource == "r" for each in shop.held) <= 1
        began = Counter((each.tenant, each.resource) for each in shop.began)
        assert began[(ACME, None)] > 8
        assert began[(OTHER, None)] > 8
        assert began[(ACME, "r")] > 1

    async def test_claimers_never_share_a_resource(self, harness: Harness) -> None:
        await self.ready(harness)
        await harness.broker.publish(
            [message(tenant=ACME, resource=f"r{n % 5}", args={"n": n}) for n in range(50)]
        )
        peers = [await harness.peer() for _ in range(4)]
        done = 0
        for _ in range(200):
            batches = await asyncio.gather(*(each.claim(QUEUE, self.me, 3) for each in peers))
            got = [each for batch in batches for each in batch]
            names = [each.resource for each in got]
            assert len(names) == len(set(names)), "one resource twice"
            for each in got:
                await self.settle(harness, each, Completed())
            done += len(got)
            if done == 50:
                return
        pytest.fail(f"only {done} of 50 ran")
