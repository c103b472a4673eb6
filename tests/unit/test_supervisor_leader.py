"""Leadership under a clock that the test moves: when trust in a lease begins and ends."""

import anyio
import anyio.lowlevel
import pytest

from hive.clock import SystemClock
from hive.errors import StoreDown
from hive.events import Events, LeaderChanged
from hive.settings import Leases
from hive.testing.manual_clock import ManualClock
from patience import until
from supervisor.leader import Leadership


class Shelf:
    """A lease on a shelf: what the store would say, and how long it takes to say it."""

    ttl_seconds = 120.0

    def __init__(self, clock: ManualClock | SystemClock) -> None:
        self.clock = clock
        self.term = 0
        self.free = True
        self.ours = False
        self.away = False
        self.hanging = False
        self.answer_seconds = 0.0
        self.released = 0

    async def _call(self) -> None:
        if self.hanging:
            await anyio.sleep_forever()
        if isinstance(self.clock, ManualClock):
            self.clock.advance(self.answer_seconds)
        if self.away:
            raise StoreDown("redis", "leasing")

    async def try_acquire(self) -> int | None:
        await self._call()
        if not self.free:
            return None
        self.free, self.ours = False, True
        self.term += 1
        return self.term

    async def renew(self) -> bool:
        await self._call()
        return self.ours

    async def release(self) -> None:
        await self._call()
        self.free, self.ours = self.free or self.ours, False
        self.released += 1

    async def close(self) -> None: ...


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lease = Shelf(self.clock)
        self.events = Events()
        self.changes: list[tuple[bool, int]] = []
        self.events.subscribe(LeaderChanged, lambda event: self.changes.append((event.leading, event.term)))
        self.leadership = Leadership(self.lease, Leases(), clock=self.clock, events=self.events)


async def test_trust_ends_at_the_start_of_the_attempt_plus_ttl_less_margin() -> None:
    bench = Bench()
    bench.lease.answer_seconds = 4
    assert await bench.leadership.run_once() == 15
    bench.clock.advance(105.9)  # 4 + 105.9 since the attempt began; trusted for 120 − 10
    assert bench.leadership.leading
    assert bench.leadership.term == 1
    bench.clock.advance(0.2)
    assert not bench.leadership.leading
    assert bench.leadership.term is None
    bench.leadership.check_trust()
    assert bench.changes == [(True, 1), (False, 1)]


async def test_each_renewal_moves_the_end_of_trust() -> None:
    bench = Bench()
    await bench.leadership.run_once()
    for _ in range(100):
        bench.clock.advance(15)
        assert await bench.leadership.run_once() == 15
        assert bench.leadership.leading
    assert bench.leadership.term == 1


async def test_an_outage_shorter_than_the_trust_is_ridden_out() -> None:
    bench = Bench()
    await bench.leadership.run_once()
    bench.lease.away = True
    for _ in range(100):
        bench.clock.advance(1)
        assert await bench.leadership.run_once() < 2
        assert bench.leadership.pulse.fresh
    assert bench.leadership.leading
    bench.lease.away = False
    await bench.leadership.run_once()
    bench.clock.advance(100)
    assert bench.leadership.leading


async def test_a_longer_outage_ends_leading_before_the_lease_ends() -> None:
    bench = Bench()
    await bench.leadership.run_once()
    bench.lease.away = True
    led = 0
    for _ in range(130):
        await bench.leadership.run_once()
        led += bench.leadership.leading
        bench.clock.advance(1)
    assert led == 110
    assert bench.changes == [(True, 1), (False, 1)]


async def test_a_lost_lease_ends_leading_at_once_and_the_next_term_is_another() -> None:
    bench = Bench()
    await bench.leadership.run_once()
    bench.lease.ours, bench.lease.free = False, True  # flushed
    assert await bench.leadership.run_once() == 0
    assert not bench.leadership.leading
    await bench.leadership.run_once()
    assert bench.changes == [(True, 1), (False, 1), (True, 2)]


async def test_a_lease_whose_answer_came_too_late_is_given_back() -> None:
    bench = Bench()
    bench.lease.answer_seconds = 111
    await bench.leadership.run_once()
    assert not bench.leadership.leading
    assert bench.changes == []
    assert bench.lease.free


async def test_release_hands_over_and_does_not_stand_again() -> None:
    bench = Bench()
    await bench.leadership.run_once()
    await bench.leadership.release()
    assert bench.lease.free
    assert not bench.leadership.leading
    await bench.leadership.run_once()
    assert bench.lease.free
    assert bench.lease.term == 1


async def test_release_does_not_wait_for_a_store_that_is_away() -> None:
    bench = Bench()
    await bench.leadership.run_once()
    bench.lease.away = True
    await bench.leadership.release()
    assert not bench.leadership.leading


async def test_what_runs_while_leading_is_cancelled_with_its_term_and_begun_anew_with_the_next() -> None:
    clock, events = SystemClock(), Events()
    lease = Shelf(clock)
    lease.free = False
    leadership = Leadership(lease, Leases(), clock=clock, events=events)
    begun: list[int] = []
    ended: list[int] = []

    async def body(term: int) -> None:
        begun.append(term)
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(term)

    async with anyio.create_task_group() as group:
        group.start_soon(leadership.while_leading, body)
        await leadership.run_once()
        assert begun == []
        lease.free = True
        await leadership.run_once()
        await until(lambda: begun == [1])
        # Lost and won again without a pause: the body must see the end of its own term all the same.
        lease.ours, lease.free = False, True
        await leadership.run_once()
        await leadership.run_once()
        await until(lambda: begun == [1, 2])
        assert ended == [1]
        await leadership.release()
        await until(lambda: ended == [1, 2])
        group.cancel_scope.cancel()


async def test_an_error_of_the_body_comes_out() -> None:
    bench = Bench()
    await bench.leadership.run_once()

    async def body(term: int) -> None:
        raise ValueError(term)

    with pytest.raises(ExceptionGroup) as caught:
        await bench.leadership.while_leading(body)
    assert isinstance(caught.value.exceptions[0], ValueError)


async def test_standing_by_is_a_pulse() -> None:
    bench = Bench()
    bench.lease.free = False
    bench.clock.advance(1000)
    pulse = bench.leadership.pulse
    assert not pulse.fresh

    async def body(term: int) -> None: ...

    async with anyio.create_task_group() as group:

        async def stand_by() -> None:
            await bench.leadership.while_leading(body, pulse=pulse)

        group.start_soon(stand_by)
        await until(lambda: pulse.fresh)
        group.cancel_scope.cancel()


async def test_the_running_service_notices_the_end_of_trust_by_itself() -> None:
    clock, events = SystemClock(), Events()
    lease = Shelf(clock)
    lease.ttl_seconds = 1.2
    settings = Leases(leader_seconds=1.2, leader_renew_seconds=0.3, leader_margin_seconds=0.5)
    leadership = Leadership(lease, settings, clock=clock, events=events)
    async with anyio.create_task_group() as group:
        group.start_soon(leadership.run)
        await until(lambda: leadership.leading)
        lease.hanging = True  # a store that swallows the call, not one that refuses it
        over = anyio.Event()
        events.subscribe(LeaderChanged, lambda event: over.set())
        with anyio.fail_after(10):
            await over.wait()
        assert not leadership.leading
        group.cancel_scope.cancel()
