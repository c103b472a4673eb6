"""The embedding client against servers that answer, refuse, delay and lie."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from hive.errors import ConfigurationError
from hive.ingest.embedding import (
    PROVIDER,
    START_POLL_SECONDS,
    Embedder,
    EmbedderBusy,
    EmbedderDown,
    EmbedderLocked,
    EmbeddingRefused,
)
from hive.providers import Providers, Throttled
from hive.settings import Embedding

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def served(
    handler: Handler, *, providers: Providers | None = None, **settings: object
) -> AsyncGenerator[Embedder]:
    app = web.Application()
    app.router.add_post("/v1/embeddings", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    embedder = Embedder(
        Embedding.model_validate({"url": f"http://127.0.0.1:{port}/v1", **settings}), providers=providers
    )
    try:
        yield embedder
    finally:
        await embedder.close()
        await runner.cleanup()


def answer(vectors: list[list[float]]) -> web.Response:
    data = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors)]
    return web.json_response({"data": data})


async def test_texts_go_in_batches_and_come_back_in_order() -> None:
    sizes: list[int] = []

    async def handler(request: web.Request) -> web.Response:
        body = await request.json()
        assert request.headers["Authorization"] == "Bearer secret"
        assert body["model"] == "m"
        sizes.append(len(body["input"]))
        data = [{"index": at, "embedding": [float(text), 0.5]} for at, text in enumerate(body["input"])]
        return web.json_response({"data": data[::-1]})

    async with served(handler, api_key="secret", model="m", batch_texts=4) as embedder:
        vectors = await embedder.embed([str(at) for at in range(10)])
        assert [vector.numbers() for vector in vectors] == [[float(at), 0.5] for at in range(10)]
        assert sizes == [4, 4, 2]
        assert await embedder.embed([]) == []


async def test_a_dimension_that_does_not_fit_is_refused() -> None:
    async def handler(request: web.Request) -> web.Response:
        return answer([[1.0, 0.0, 0.0]])

    async with served(handler) as embedder:
        await embedder.check(3)
        with pytest.raises(ConfigurationError, match="3 dimensions, and the index holds 256"):
            await embedder.check(256)


@pytest.mark.parametrize(("status", "error"), [(429, EmbedderBusy), (503, EmbedderBusy)])
async def test_an_overrun_server_is_obeyed(status: int, error: type[EmbedderBusy]) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.json_response(
            {"error": {"message": "slow down"}}, status=status, headers={"Retry-After": "7"}
        )

    providers = Providers()
    async with served(handler, providers=providers) as embedder:
        with pytest.raises(error, match="slow down") as caught:
            await embedder.embed(["a"])
        assert caught.value.retry_after_seconds == 7
        state = providers.state(PROVIDER)
        assert (state.limit, state.under_way, round(state.closed_seconds)) == (4, 0, 7)
        with pytest.raises(Throttled, match="no room") as refused:  # who asks for an answer is told at once
            await embedder.embed(["a"], timeout_seconds=2)
        assert round(refused.value.retry_after_seconds or 0) == 7


async def test_a_date_to_come_back_at_is_measured_by_the_servers_clock() -> None:
    async def handler(request: web.Request) -> web.Response:
        headers = {"Date": "Mon, 01 Jan 2001 00:00:00 GMT", "Retry-After": "Mon, 01 Jan 2001 00:00:30 GMT"}
        return web.Response(status=429, headers=headers)

    async with served(handler) as embedder:
        with pytest.raises(EmbedderBusy) as caught:
            await embedder.embed(["a"])
        assert caught.value.retry_after_seconds == 30


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, EmbeddingRefused),
        (413, EmbeddingRefused),
        (401, EmbedderLocked),
        (404, EmbedderDown),
        (500, EmbedderDown),
        (502, EmbedderDown),
    ],
)
async def test_what_each_answer_means(status: int, error: type[Exception]) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, text="<html>no</html>")

    async with served(handler) as embedder:
        with pytest.raises(error, match=str(status)):
            await embedder.embed(["a"])


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b'{"data": []}', b'{"data": [{"index": 0, "embedding": "%%%"}]}']
)
async def test_an_answer_that_cannot_be_read_is_the_servers_fault(body: bytes) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type="application/json")

    async with served(handler) as embedder:
        with pytest.raises(EmbedderDown):
            await embedder.embed(["a"])


async def test_nobody_is_waited_for_for_ever() -> None:
    never = anyio.Event()

    async def handler(request: web.Request) -> web.Response:
        await never.wait()
        return web.Response()

    async with served(handler, request_seconds=0.1) as embedder:
        with pytest.raises(EmbedderDown, match=r"within 0\.1 s"):
            await embedder.embed(["a"])
        never.set()


async def test_a_closed_port_is_a_server_that_is_away() -> None:
    embedder = Embedder(Embedding(url="http://127.0.0.1:9/v1"))
    with pytest.raises(EmbedderDown, match="does not answer"):
        await embedder.embed(["a"])
    await embedder.close()


async def test_a_server_of_hives_own_that_is_starting_is_waited_for(tmp_path: Path) -> None:
    async def handler(request: web.Request) -> web.Response:
        return answer([[1.0, 0.5]])

    app = web.Application()
    app.router.add_post("/v1/embeddings", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    place = tmp_path / "model.sock"
    embedder = Embedder(Embedding(), socket_path=place)
    asking = asyncio.ensure_future(embedder.embed(["a"]))
    for _ in range(3):
        await asyncio.sleep(START_POLL_SECONDS)
    assert not asking.done()
    await web.UnixSite(runner, str(place)).start()
    assert [vector.numbers() for vector in await asking] == [[1.0, 0.5]]
    await embedder.close()
    await runner.cleanup()


async def test_no_more_requests_at_once_than_the_server_bears() -> None:
    inside = most = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.sleep(0.005)
        inside -= 1
        count = len(json.loads(await request.read())["input"])
        return answer([[1.0]] * count)

    async with served(handler) as embedder, anyio.create_task_group() as group:
        for _ in range(40):
            group.start_soon(embedder.embed, ["a"])
    assert most <= 8
