"""Handlers in a real pool that call a real server: it says 429, they obey."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

import aiohttp
import pytest
from aiohttp import web

from carriers import StreamsHarness
from hive import Context, Retry, Throttled, task
from hive.backoff import NEVER
from hive.broker.ledger import Ledger
from hive.clock import SystemClock
from hive.ids import MessageId, TenantId
from hive.ingest.embedding import Embedder
from hive.outcomes import ErrorKind
from hive.providers import Providers
from hive.settings import Embedding
from hive.states import JobState
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.testing.manual_clock import ManualClock
from ledger_harness import LedgerHarness
from patience import until
from pool_kit import ACME, Rig

JOBS = 40
CLOSED_SECONDS = 0.6
LONG_SECONDS = 600


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
    assert (rig.count("retrying"), rig.count("failed")) == (0, 0)
    assert rig.count("throttled") == (0 if in_place else 8)
    assert set(attempts.values()) == {1}, "a wait burns no attempt"
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
    known = set[MessageId]()

    @task(queue="work", into=rig.registry)
    def ask(context: Context) -> None:
        nonlocal most
        with context.portal.wrap_async_context_manager(context.provider("api")) as call:
            most = max(most, providers.state("api").under_way)
            status = 200 if context.id in known else 429
            known.add(context.id)
            call.check(status, {"Retry-After": "0.01"})

    await rig.send(ask, 12)
    async with rig.serving():
        await until(lambda: rig.count("completed") == 12, what="every job done")
    assert rig.count("throttled") == 12
    assert 1 <= most <= 2


@dataclass
class Closable:
    """A server that asks for ten minutes of patience while it is ``closed``."""

    closed: bool = True
    refused: int = 0
    served: int = 0
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        if self.closed:
            self.refused += 1
            return web.Response(status=429, headers={"Retry-After": f"{LONG_SECONDS}"})
        self.served += 1
        return web.json_response({"data": [{"index": 0, "embedding": [1.0]}]})

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator["Closable"]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


class OverLedger(LedgerHarness):
    async def all_due(self) -> None:
        """Let the time come for what is put back."""
        async with self.database.acquire() as connection:
            await connection.execute(
                "update hive.job set run_at = statement_timestamp() where state = 'retrying'"
            )


class OverStreams(StreamsHarness):
    async def all_due(self) -> None:
        redis = self.store.client
        async for later in redis.scan_iter("hive:{*}:later"):
            for id in await redis.zrange(later, 0, -1):
                await redis.zadd(later, {id: 1}, xx=True)


@pytest.fixture(params=["ledger", "streams"])
async def carrier(
    request: pytest.FixtureRequest, database: Database, redis_store: RedisStore
) -> OverLedger | OverStreams:
    return OverLedger(database) if request.param == "ledger" else OverStreams(redis_store, database)


async def test_a_closed_provider_holds_no_slot_and_burns_no_attempt(
    carrier: OverLedger | OverStreams, database: Database
) -> None:
    """More jobs than slots meet a provider that is closed for minutes: the others in their pool go on."""
    clock = ManualClock()
    providers = Providers({"api": 8}, clock=clock)
    rig = Rig(slots=3, prefetch=2, broker=carrier.broker, services={Providers: providers})
    attempts: list[int] = []

    async with Closable().serving() as server, aiohttp.ClientSession() as session:

        @task(queue="work", into=rig.registry, retry=NEVER)
        async def ask(context: Context) -> None:
            attempts.append(context.attempt)
            async with context.provider("api") as call, session.get(server.url) as answer:
                call.check(answer.status, answer.headers)

        @task(queue="work", into=rig.registry, retry=NEVER)
        async def other(context: Context) -> None:
            await asyncio.sleep(0)

        async with rig.serving():
            before = SystemClock().now()
            jobs = await rig.send(ask, JOBS)
            await until(lambda: rig.count("throttled") == JOBS, what="every job put back")
            assert 1 <= server.refused <= 3, "who comes to a closed gate does not call"
            assert (rig.pool.slots.in_use, providers.state("api").waiting) == (0, 0)
            await carrier.expect_depth(waiting=0, delayed=JOBS, running=0)
            if isinstance(carrier, OverLedger):
                await expect_rows(carrier.ledger, database, jobs, before + timedelta(seconds=LONG_SECONDS))

            await rig.send(other, 10)
            rig.tenant = TenantId("neighbour")
            await rig.send(other, 10)
            await until(lambda: rig.count("completed") == 20, what="others' work beside it")
            assert {event.task for event in rig.settled if event.outcome == "completed"} == {"other"}

            server.closed = False
            clock.advance(LONG_SECONDS)
            await carrier.all_due()
            await until(lambda: rig.count("completed") == 20 + JOBS, what="every job done")
    assert (rig.count("retrying"), rig.count("failed"), rig.count("throttled")) == (0, 0, JOBS)
    assert attempts == [1] * (2 * JOBS)
    assert server.served == JOBS
    await carrier.expect_depth(waiting=0, delayed=0, running=0)


async def expect_rows(ledger: Ledger, database: Database, jobs: list[MessageId], due: datetime) -> None:
    """Each row says by whom it is throttled, and until when; nothing else is written for it."""
    for job in jobs:
        view = await ledger.find(job)
        assert view is not None
        assert view.error is not None
        assert (view.state, view.attempt, view.error.kind) == (JobState.RETRYING, 0, ErrorKind.THROTTLED)
        assert view.error.summary.startswith("throttled by api: api ")
        assert view.run_at is not None
        assert view.run_at >= due
    async with database.acquire() as connection:
        assert await connection.fetchval("select count(*) from hive.job_attempt") == 0


async def test_embedding_is_a_provider_like_any_other(database: Database) -> None:
    clock = ManualClock()
    providers = Providers(clock=clock)
    carrier = OverLedger(database)
    rig = Rig(slots=2, broker=carrier.broker, tenant=ACME)

    async with Closable().serving() as server:
        embedder = Embedder(Embedding(url=f"{server.url}/v1"), providers=providers)

        @task(queue="work", into=rig.registry, retry=NEVER)
        async def embed(context: Context) -> None:
            await embedder.embed(["a"])

        async with rig.serving():
            jobs = await rig.send(embed, 6)
            await until(lambda: rig.count("throttled") == 6, what="every job put back")
            view = await carrier.ledger.find(jobs[-1])
            assert view is not None
            assert view.error is not None
            assert (view.attempt, view.error.kind) == (0, ErrorKind.THROTTLED)
            assert view.error.summary.startswith("throttled by embedding: ")
            server.closed = False
            clock.advance(LONG_SECONDS)
            await carrier.all_due()
            await until(lambda: rig.count("completed") == 6, what="every job done")
        await embedder.close()
    assert (rig.count("retrying"), rig.count("failed")) == (0, 0)


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
