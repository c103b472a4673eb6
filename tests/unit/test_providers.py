"""Providers: how many calls at once, what a refusal does, who waits for how long."""

import asyncio
import math
from contextlib import suppress

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.clock import SystemClock
from hive.errors import ConfigurationError
from hive.events import Events, ProviderThrottled
from hive.providers import GATE_SECONDS, MOST_ACCOUNTS, MOST_NAMES, Providers, ProviderState, Throttled
from hive.retry_after import MOST_SECONDS, retry_after_seconds
from hive.settings import Probes
from hive.testing.manual_clock import ManualClock
from hive.throttle import LONGEST_SECONDS, Throttle
from probes.loop import LoopMonitor
from probes.metrics import Metrics
from supervisor.gauges import add_gauges


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


async def settled() -> None:
    """Let everybody who can go on do so."""
    await anyio.wait_all_tasks_blocked()


async def entered(throttle: Throttle) -> int:
    """The round in which one is admitted."""
    round = await throttle.enter()
    assert round is not None
    return round


class Caller:
    """A task that enters, and leaves when it is told to."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self.inside = False
        self.finish = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        await self._throttle.enter()
        self.inside = True
        try:
            await self.finish.wait()
        finally:
            self.inside = False
            self._throttle.leave()


async def test_the_limit_is_halved_once_a_round_and_grows_by_one_a_round(clock: ManualClock) -> None:
    throttle = Throttle(8, clock)
    first, second = await entered(throttle), await entered(throttle)
    assert throttle.overrun(first)
    assert not throttle.overrun(second)  # the same overrun, seen twice
    assert throttle.limit == 4
    throttle.leave()
    throttle.leave()
    for _ in range(4):
        throttle.success()
    assert throttle.limit == 4, "a whole round and a bit: growth slows as the limit grows"
    throttle.success()
    assert throttle.limit == 5
    for _ in range(100):
        throttle.success()
    assert throttle.limit == 8, "never above the ceiling"
    for _ in range(10):
        clock.advance(LONGEST_SECONDS)
        throttle.overrun(await entered(throttle))
        throttle.leave()
    assert throttle.limit == 1, "never below one"


async def test_everybody_enters_in_turn_and_nobody_passes(clock: ManualClock) -> None:
    throttle = Throttle(2, clock)
    callers = [Caller(throttle) for _ in range(6)]
    await settled()
    assert [each.inside for each in callers] == [True, True, False, False, False, False]
    assert (throttle.inside, throttle.waiting) == (2, 4)
    callers[0].finish.set()
    late = Caller(throttle)
    await settled()
    assert [each.inside for each in callers] == [False, True, True, False, False, False]
    for each in (*callers, late):
        each.finish.set()
    await asyncio.gather(*(each.task for each in (*callers, late)))
    assert (throttle.inside, throttle.waiting) == (0, 0)


async def test_a_cancelled_wait_takes_nothing_whenever_it_comes(clock: ManualClock) -> None:
    throttle = Throttle(1, clock)
    await throttle.enter()
    waiting, admitted, next_one = Caller(throttle), Caller(throttle), Caller(throttle)
    await settled()
    waiting.task.cancel()
    await settled()
    assert throttle.waiting == 2
    throttle.leave()  # our place goes to `admitted` …
    admitted.task.cancel()  # … who is cancelled before it knows
    await settled()
    assert next_one.inside
    next_one.finish.set()
    await next_one.task
    assert admitted.task.cancelled()
    assert (throttle.inside, throttle.waiting) == (0, 0)


async def test_a_closed_gate_keeps_everybody_out_until_its_time(clock: ManualClock) -> None:
    throttle = Throttle(4, clock)
    insiders = [Caller(throttle) for _ in range(4)]
    waiter = Caller(throttle)
    await settled()
    assert throttle.overrun(0, 30)
    throttle.overrun(0, 10)  # asks for less: the longest wait counts
    for each in insiders:
        each.finish.set()
    newcomer = Caller(throttle)
    await settled()
    clock.advance(29.9)
    throttle.admit()
    await settled()
    assert (throttle.inside, throttle.waiting, throttle.limit) == (0, 2, 2)
    clock.advance(0.2)
    throttle.admit()
    await settled()
    assert waiter.inside
    assert newcomer.inside
    assert throttle.closed_seconds == 0
    throttle.overrun(1, 1e9)
    assert throttle.closed_seconds == LONGEST_SECONDS
    for each in (waiter, newcomer):
        each.finish.set()
    await asyncio.gather(waiter.task, newcomer.task)


async def test_the_gate_opens_by_itself() -> None:
    throttle = Throttle(4, SystemClock())
    throttle.overrun(0, 0.03)
    began = asyncio.get_running_loop().time()
    async with asyncio.timeout(10):
        await throttle.enter()
    assert asyncio.get_running_loop().time() - began >= 0.029


async def test_who_would_not_wait_for_so_long_is_sent_away_when_the_gate_closes(clock: ManualClock) -> None:
    throttle = Throttle(1, clock)
    await throttle.enter()
    hasty = asyncio.ensure_future(throttle.enter(5))
    patient = Caller(throttle)
    cancelled = asyncio.ensure_future(throttle.enter(5))
    await settled()
    throttle.overrun(0, 5)
    await settled()
    assert throttle.waiting == 3, "each is ready to wait for that"
    throttle.overrun(0, 6)
    cancelled.cancel()  # before it knows that it was sent away
    assert await hasty is None
    assert await throttle.enter(5) is None, "who comes later is not even put in line"
    throttle.leave()
    clock.advance(6)
    throttle.admit()
    await settled()
    assert patient.inside
    assert (throttle.inside, throttle.waiting) == (1, 0)
    patient.finish.set()
    await patient.task
    assert (throttle.inside, cancelled.cancelled()) == (0, True)


async def test_without_a_word_the_gate_is_closed_for_longer_each_round(clock: ManualClock) -> None:
    throttle = Throttle(512, clock)

    async def refused() -> float:
        clock.advance(LONGEST_SECONDS)
        first, second = await entered(throttle), await entered(throttle)
        throttle.overrun(first)
        closed = throttle.closed_seconds
        throttle.overrun(second)
        assert throttle.closed_seconds == closed, "the same overrun, seen twice"
        throttle.leave()
        throttle.leave()
        return closed

    for expected in (1, 2, 4, 8, 16, 32, 60, 60):
        assert 0.8 * expected <= await refused() <= 1.2 * expected
    throttle.success()
    assert await refused() <= 1.2


async def test_a_gate_that_opens_soon_is_waited_for_and_no_other(clock: ManualClock) -> None:
    providers = Providers({"api": 2}, clock=clock)

    async def close(seconds: float | None) -> float | None:
        with pytest.raises(Throttled) as caught:
            async with providers.call("api"):
                raise Throttled(retry_after_seconds=seconds)
        return caught.value.retry_after_seconds

    async def call(patience_seconds: float | None = None) -> str:
        async with providers.call("api", patience_seconds=patience_seconds):
            return "through"

    assert await close(GATE_SECONDS) == GATE_SECONDS
    waiting = asyncio.ensure_future(call())
    patient = asyncio.ensure_future(call(math.inf))
    await settled()
    assert providers.state("api").waiting == 2
    clock.advance(GATE_SECONDS)
    async with providers.call("api"):
        pass
    assert (await waiting, await patient) == ("through", "through")
    await close(GATE_SECONDS + 1)
    with pytest.raises(Throttled, match="api has no room") as refused:
        await call()
    assert refused.value.retry_after_seconds == GATE_SECONDS + 1
    assert refused.value.provider == "api"
    patient = asyncio.ensure_future(call(math.inf))
    await settled()
    assert providers.state("api").waiting == 1
    patient.cancel()
    clock.advance(GATE_SECONDS + 1)
    assert await close(None) == providers.state("api").closed_seconds > 0, "told when to come back"
    clock.advance(60)
    assert await close(0) == providers.state("api").closed_seconds > 0, "not at once, whatever it says"


async def test_only_a_refusal_for_too_much_slows_down(clock: ManualClock) -> None:
    providers = Providers({"api": 8}, clock=clock)

    async def call(error: Exception | None = None) -> int:
        clock.advance(LONGEST_SECONDS)
        with suppress(Exception):
            async with providers.call("api"):
                if error is not None:
                    raise error
        return providers.state("api").limit

    assert await call() == 8
    assert await call(ValueError("a bug")) == 8
    assert await call(Throttled()) == 4
    assert await call(ValueError("a bug")) == 4
    for _ in range(5):
        await call()
    assert providers.state("api") == ProviderState(
        provider="api", limit=5, under_way=0, waiting=0, closed_seconds=0
    )
    assert await call(Throttled(retry_after_seconds=60)) == 2
    assert providers.state("api").closed_seconds == 60


async def test_refusals_of_calls_made_together_count_once(clock: ManualClock) -> None:
    events, seen = Events(), list[ProviderThrottled]()
    events.subscribe(ProviderThrottled, seen.append)
    metrics = Metrics(clock)
    metrics.wire(events)
    providers = Providers({"default": 8}, events=events, clock=clock)
    together = anyio.Event()

    async def call() -> None:
        with suppress(Throttled):
            async with providers.call("api"):
                await together.wait()
                raise Throttled

    async with anyio.create_task_group() as group:
        for _ in range(6):
            group.start_soon(call)
        await settled()
        assert providers.state("api").under_way == 6
        together.set()
    assert providers.state("api").limit == 4
    assert seen == [ProviderThrottled(provider="api")] * 6
    assert b'hive_provider_throttles_total{provider="api"} 6.0' in metrics.render()


async def test_a_refusal_counts_for_its_own_provider_alone(clock: ManualClock) -> None:
    providers = Providers({"outer": 8, "inner": 8}, clock=clock)
    with pytest.raises(Throttled) as caught:
        async with providers.call("outer"), providers.call("inner"):
            raise Throttled
    assert caught.value.provider == "inner"
    assert [each.limit for each in providers.states()] == [8, 4]


async def test_who_has_no_patience_is_told_when_to_come_back(clock: ManualClock) -> None:
    providers = Providers({"api": 1}, clock=clock)

    async def refused(seconds: float) -> float | None:
        with pytest.raises(Throttled, match="api has no room") as caught:
            async with providers.call("api", patience_seconds=seconds):
                raise AssertionError("entered")
        return caught.value.retry_after_seconds

    async with providers.call("api"):
        assert await refused(0) is None
        assert await refused(0.01) is None
    assert providers.state("api").limit == 1
    with pytest.raises(Throttled):
        async with providers.call("api"):
            raise Throttled(retry_after_seconds=100)
    assert await refused(50) == 100, "at once: no time passes here"
    clock.advance(100)
    async with providers.call("api", patience_seconds=0.5):
        assert providers.state("api") == ProviderState(
            provider="api", limit=1, under_way=1, waiting=0, closed_seconds=0
        )


async def test_accounts_are_apart_and_only_so_many_are_remembered(clock: ManualClock) -> None:
    providers = Providers({"api": 8}, clock=clock)

    async def call(account: str, error: Exception | None = None) -> None:
        with suppress(Throttled):
            async with providers.call("api", account=account, patience_seconds=1):
                if error is not None:
                    raise error

    await call("overdrawn", Throttled(retry_after_seconds=60))
    async with asyncio.timeout(20):
        await call("sound")
    assert providers.state("api").limit == 4, "that of the slowest"
    async with providers.call("api", account="used"):
        for number in range(2 * MOST_ACCOUNTS):
            await call(f"{number}")
            assert providers.state("api").under_way == 1
    assert len(providers._throttles) == MOST_ACCOUNTS  # pyright: ignore[reportPrivateUsage]
    assert ("api", "used") in providers._throttles  # pyright: ignore[reportPrivateUsage]
    assert providers.state("api").limit == 8, "the overdrawn account is forgotten"


async def test_names_are_few() -> None:
    providers = Providers()
    for number in range(MOST_NAMES):
        async with providers.call(f"p{number}"):
            pass
    with pytest.raises(ConfigurationError, match="account"):
        async with providers.call("one more"):
            pass
    async with providers.call("p0"):
        assert len(providers.states()) == MOST_NAMES


async def test_a_scrape_shows_each_provider_and_no_account(clock: ManualClock) -> None:
    providers, metrics = Providers({"api": 8}, clock=clock), Metrics(clock)
    add_gauges(metrics, {}, providers, LoopMonitor(Probes(), Events()))
    async with providers.call("api", account="acme"), providers.call("api", account="beta"):
        with suppress(Throttled):
            async with providers.call("api", account="acme"):
                raise Throttled(retry_after_seconds=30)
        shown = metrics.render().decode()
    for line in (
        'hive_provider_limit{provider="api"} 4.0',
        'hive_provider_calls{provider="api"} 2.0',
        'hive_provider_waiting{provider="api"} 0.0',
        'hive_provider_closed_seconds{provider="api"} 30.0',
    ):
        assert line in shown
    assert "acme" not in shown


async def test_an_answer_is_checked() -> None:
    providers = Providers()
    async with providers.call("api") as call:
        for status in (200, 304, 400, 404, 500, 502):
            call.check(status, {"Retry-After": "5"})
    for status in (429, 503):
        with pytest.raises(Throttled, match=f"api answered {status}") as caught:
            async with providers.call("api", account=f"{status}") as call:
                call.check(status, {"Retry-After": "5"})
        assert caught.value.retry_after_seconds == 5


DATE = "Mon, 01 Jan 2001 00:00:00 GMT"
# The standard library's parser fails on each in another way than by a ValueError, in one version or another.
GARBAGE = (
    "Mon, 01 Jan 2020 00:00:00 +99999999999999999",
    "01-Jan-99999999999 00:00:00 GMT",
    "EST",
)
almost_dates = st.lists(
    st.sampled_from(
        ["Mon,", "Jan", "01-Jan", "01", "-1", "2020", "99999999999", "00:00:00", "99:99", "::", "GMT", ","]
    )
    | st.text(alphabet="0123456789:.,+-GMTaJn ", max_size=20),
    max_size=8,
).map(" ".join)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": " 1.5 "}, 1.5),
        ({"Retry-After": "-3"}, 0),
        ({"Retry-After": "1e99"}, MOST_SECONDS),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Mon, 01 Jan 2001 00:00:30 GMT", "Date": DATE}, 30),
        ({"Retry-After": "Mon, 01 Jan 2001 00:00:30", "Date": DATE}, 30),
        ({"Retry-After": DATE, "Date": "Mon, 01 Jan 2001 00:00:30 GMT"}, 0),
        ({"Retry-After": DATE}, 0),
        ({"Retry-After": DATE, "Date": "nonsense"}, 0),
        *(({"Retry-After": garbage}, None) for garbage in GARBAGE),
        *(({"Retry-After": DATE, "Date": garbage}, 0) for garbage in GARBAGE),
    ],
)
def test_what_a_server_asks_for(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers) == seconds


@given(st.text() | almost_dates, st.text() | almost_dates)
def test_any_header_is_a_number_of_seconds_or_nothing(value: str, date: str) -> None:
    seconds = retry_after_seconds({"Retry-After": value, "Date": date})
    assert seconds is None or 0 <= seconds <= MOST_SECONDS
