"""Handlers in a real pool that call a real server: it says 429, they obey."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from hive import Context, Retry, Throttled, task
from hive.providers import Providers
from patience import until
from pool_kit import Rig

JOBS = 40
CLOSED_SECONDS = 0.6


class Server:
    """Refuses its first ``refusals`` requests, once so many are under way; counts how many are at once.

    ``arrivals``: when the others came, on the loop's clock.
    """

    def __init__(self, refusals: int) -> None:
        self._refusals = refusals
        self._all_here = asyncio.Event()
        self.url = ""
        self.refused = 0
        self.refused_at = 0.0
        self.inside = 0
        self.most = 0
        self.arrivals: list[float] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.inside += 1
        try:
            if self.refused < self._refusals:
                self.refused += 1
                if self.refused == self._refusals:
                    self.refused_at = asyncio.get_running_loop().time()
                    self._all_here.set()
                await self._all_here.wait()
                return web.Response(status=429, headers={"Retry-After": f"{CLOSED_SECONDS}"})
            self.arrivals.append(asyncio.get_running_loop().time())
            self.most = max(self.most, self.inside)
            await asyncio.sleep(0.002)
            return web.Response(text="done")
        finally:
            self.inside -= 1

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["Server"]:
        app = web.Application()
        app.router.add_get("/", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        try:
            yield self
        finally:
            await runner.cleanup()


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_refusal_halves_the_calls_and_shuts_the_gate_for_all(in_place: bool) -> None:
    """Whether the handler lets the refusal escape, and is run again, or goes on by itself."""
    providers = Providers({"api": 8})
    rig = Rig(slots=16, prefetch=4, services={Providers: providers})
    attempts: dict[str, int] = {}

    async with Server(refusals=8).serving() as server, aiohttp.ClientSession() as session:

        async def call(context: Context) -> None:
            async with context.provider("api") as call, session.get(server.url) as answer:
                call.check(answer.status, answer.headers)

        @task(queue="work", into=rig.registry, retry=Retry(delays_seconds=(600,)))
        async def ask(context: Context) -> None:
            attempts[str(context.id)] = context.attempt
            while True:
                try:
                    return await call(context)
                except Throttled:
                    if not in_place:
                        raise

        await rig.send(ask, JOBS)
        async with rig.serving():
            await until(lambda: server.refused == 8, what="8 calls at once, as configured")
            await until(lambda: providers.state("api").limit == 4, what="halved, once for all 8")
            assert providers.state("api").closed_seconds > 0
            await until(lambda: rig.count("completed") == JOBS, what="every job done")

    # Within seconds, although the policy would wait for ten minutes: the server's word counts.
    assert (rig.count("retrying"), rig.count("failed")) == (0 if in_place else 8, 0)
    assert sorted(attempts.values()).count(2) == (0 if in_place else 8)
    assert len(server.arrivals) == JOBS
    assert min(server.arrivals) - server.refused_at >= CLOSED_SECONDS * 0.99
    assert 1 <= server.most <= 8
    first = sorted(server.arrivals)[:5]
    assert first[4] - first[0] >= 0.001, "four at once after the halving, not five"
    state = providers.state("api")
    assert (state.under_way, state.waiting, rig.pool.slots.in_use) == (0, 0, 0)
    assert 4 < state.limit <= 8, "grown back with every call that went through"


async def test_a_handler_in_a_thread_calls_through_the_portal() -> None:
    providers = Providers({"api": 2})
    rig = Rig(slots=6, services={Providers: providers})
    most = 0

    @task(queue="work", into=rig.registry)
    def ask(context: Context) -> None:
        nonlocal most
        with context.portal.wrap_async_context_manager(context.provider("api")) as call:
            most = max(most, providers.state("api").under_way)
            call.check(429 if context.attempt == 1 else 200, {"Retry-After": "0.01"})

    await rig.send(ask, 12)
    async with rig.serving():
        await until(lambda: rig.count("completed") == 12, what="every job done")
    assert rig.count("retrying") == 12
    assert 1 <= most <= 2


async def test_a_cancelled_handler_gives_its_turn_back() -> None:
    providers = Providers({"api": 1})
    rig = Rig(slots=3, services={Providers: providers}, cancel_seconds=0.2)

    @task(queue="work", into=rig.registry)
    async def hold(context: Context) -> None:
        async with context.provider("api"):
            await asyncio.Event().wait()

    first, second = await rig.send(hold, 2)
    async with rig.serving():
        await until(lambda: providers.state("api").waiting == 1, what="one calls, one waits")
        assert await rig.broker.cancel([first, second]) == 2
        await until(lambda: rig.count("cancelled") == 2, what="both ended")
    state = providers.state("api")
    assert (state.limit, state.under_way, state.waiting) == (1, 0, 0)
