"""The web connector against sites that break, loop, drip, refuse and lie: each is bounded, and told."""

import asyncio
import gzip

import pytest
from aiohttp import web as server_side
from yarl import URL

from hive.ingest.connectors.port import (
    Checkpoint,
    Item,
    SourceDocument,
    SourceError,
)
from hive.ingest.connectors.web import WebConnector
from hive.ingest.connectors.web_client import Failed, WebClient
from hive.ingest.connectors.web_config import WebConfig
from hive.ingest.connectors.web_urls import Site
from web_world import World, html, moved, never, page, serving, typed


async def test_redirect_loops_are_failures(world: World) -> None:
    world.pages = {
        "/": page("home", "/round", "/long/0"),
        "/round": moved("/about"),
        "/about": moved("/round"),
    }
    world.pages.update({f"/long/{number}": moved(f"/long/{number + 1}") for number in range(40)})
    items = await world.crawl()
    assert world.ids(items) == ["/"]
    assert world.failures(items) == {"/round": "redirect_loop", "/long/0": "redirect_loop"}
    with pytest.raises(SourceError) as caught:
        await world.crawl("/round")
    assert caught.value.code == "redirect_loop"


async def test_a_server_that_never_answers(world: World) -> None:
    world.pages = {"/": page("home", "/slow", "/ok"), "/slow": never, "/ok": page("ok")}
    items = await world.crawl(request_seconds=1.5)
    assert world.ids(items) == ["/", "/ok"]
    assert world.failures(items) == {"/slow": "timeout"}
    with pytest.raises(SourceError, match="did not answer") as caught:
        await world.crawl("/slow", request_seconds=1.5)
    assert caught.value.transient
    world.pages["/robots.txt"] = never
    with pytest.raises(SourceError) as caught:
        await world.crawl("/", request_seconds=1.5)
    assert (caught.value.code, caught.value.transient) == ("timeout", True)


async def test_a_body_that_drips_for_ever_is_cut_off(world: World) -> None:
    async def drip(request: server_side.Request) -> server_side.StreamResponse:
        response = server_side.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        while True:
            await response.write(b"<p>x")
            await asyncio.sleep(0.01)

    world.pages = {"/": page("home", "/drip"), "/drip": drip}
    assert world.failures(await world.crawl(request_seconds=1.5)) == {"/drip": "timeout"}


async def test_huge_bodies_are_refused_announced_or_not_packed_or_not(world: World) -> None:
    async def unannounced(request: server_side.Request) -> server_side.StreamResponse:
        response = server_side.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        for _ in range(100):
            await response.write(b"x" * 10_000)
        return response

    bomb = gzip.compress(b"<p>" + b"x" * 5_000_000)
    world.pages = {
        "/": page("home", "/announced", "/unannounced", "/bomb"),
        "/announced": b"x" * 200_000,
        "/unannounced": unannounced,
        "/bomb": lambda _: server_side.Response(
            body=bomb, headers={"Content-Type": "text/html", "Content-Encoding": "gzip"}
        ),
    }
    items = await world.crawl(max_document_bytes=100_000)
    assert world.failures(items) == dict.fromkeys(("/announced", "/unannounced", "/bomb"), "too_large")


async def test_wrong_charsets_do_not_hurt(world: World) -> None:
    world.pages = {
        "/": typed("<main><p>café</p><a href=x>x</a></main>".encode("cp1252"), "text/html; charset=utf-8"),
        "/x": typed("<main><p>Größe</p></main>".encode(), "text/html; charset=klingon"),
    }
    texts = [item.sections[0].body for item in await world.crawl() if isinstance(item, SourceDocument)]
    assert texts[0].startswith("café")
    assert texts[1] == "Größe"


async def test_broken_links_are_failures_and_a_broken_start_is_the_sources(world: World) -> None:
    world.pages = {
        "/": page("home", "/gone", "/closed", "/broken"),
        "/closed": lambda _: server_side.Response(status=403),
        "/broken": lambda _: server_side.Response(status=500),
    }
    items = await world.crawl()
    assert world.failures(items) == {"/gone": "not_found", "/closed": "forbidden", "/broken": "server_error"}
    for path, code, transient in (
        ("/gone", "not_found", False),
        ("/closed", "forbidden", False),
        ("/broken", "server_error", True),
    ):
        with pytest.raises(SourceError) as caught:
            await world.crawl(path)
        assert (caught.value.code, caught.value.transient) == (code, transient)


async def test_one_good_start_is_enough(world: World) -> None:
    world.pages = {"/good": page("good")}
    config = WebConfig.model_validate(
        {"start": [f"{world.base}/gone", f"{world.base}/good"], "allow_private": True}
    )
    items = [item async for item in WebConnector().items(config, None, None, world.ask)]
    assert world.ids(items) == ["/good"]
    assert world.failures(items) == {"/gone": "not_found"}


async def test_busy_server_is_given_time(world: World) -> None:
    answers = iter([429, 503, 200])

    def busy(_: server_side.Request) -> server_side.Response:
        status = next(answers)
        return (
            html(page("late"))
            if status == 200
            else server_side.Response(status=status, headers={"Retry-After": "0"})
        )

    world.pages = {"/": page("home", "/busy", "/after"), "/busy": busy, "/after": page("after")}
    items = await world.crawl()
    assert sorted(world.ids(items)) == ["/", "/after", "/busy"]
    assert world.failures(items) == {}


async def test_patience_that_is_asked_for_too_long_is_left_to_the_next_run(world: World) -> None:
    busy = {"Retry-After": "600"}
    world.pages = {
        "/": page("home", "/busy", "/after"),
        "/busy": lambda _: server_side.Response(status=429, headers=busy),
        "/after": page("after"),
    }
    items: list[Item] = []

    async def crawl() -> None:
        async for item in world.items():
            items.append(item)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(SourceError) as caught:
        await crawl()
    assert caught.value.code == "rate_limited"
    assert caught.value.transient
    assert caught.value.retry_after_seconds == 600
    last = items[-1]
    assert isinstance(last, Checkpoint)
    assert world.ids(items) == ["/", "/after"]
    world.pages["/busy"] = page("busy no more")
    assert world.ids(await world.crawl(checkpoint=last.state)) == ["/busy"]


async def test_a_site_that_dies_ends_the_run_for_now(world: World) -> None:
    world.pages = {"/": page("home", *(f"/{number}" for number in range(40)))}
    world.pages.update({f"/{number}": lambda _: server_side.Response(status=502) for number in range(40)})
    with pytest.raises(SourceError) as caught:
        await world.crawl()
    assert (caught.value.code, caught.value.transient) == ("unreachable", True)


async def test_private_hosts_are_refused_however_they_are_spelled(world: World) -> None:
    world.pages = {"/": page("secret")}
    port = world.base.rpartition(":")[2]
    for host in ("127.0.0.1.", "127.1", "2130706433", "0", "0x7f000001"):
        config = WebConfig.model_validate({"start": f"http://{host}:{port}/"})
        with pytest.raises(SourceError):
            await anext(WebConnector().items(config, None, None, world.ask))
    assert world.requests == []


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::ffff:127.0.0.1]", "0.0.0.0"])
async def test_private_addresses_are_refused_by_the_client_itself(world: World, host: str) -> None:
    url = URL(f"http://{host}:{world.base.rpartition(':')[2]}/")
    client = WebClient(
        Site(url), user_agent="x", request_seconds=5, max_bytes=100, allow_private=False, credential=None
    )
    async with client:
        answer = await client.get(url)
    assert isinstance(answer, Failed)
    assert answer.code == "private_address"
    assert world.requests == []


async def test_nobody_listening_is_said_with_the_port(world: World, unused_tcp_port: int) -> None:
    config = WebConfig.model_validate(
        {"start": f"http://127.0.0.1:{unused_tcp_port}/", "allow_private": True}
    )
    with pytest.raises(SourceError, match=str(unused_tcp_port)) as caught:
        await anext(WebConnector().items(config, None, None, world.ask))
    assert (caught.value.code, caught.value.transient) == ("unreachable", True)


async def test_credentials_go_to_the_site_only(world: World) -> None:
    world.pages = {"/": page("home", "/a"), "/a": page("a")}
    await world.crawl(credential={"username": "me", "password": "sesame"})
    assert {request.headers.get("Authorization") for request in world.requests} == {"Basic bWU6c2VzYW1l"}
    async with serving("127.0.0.2") as other:
        other.pages = {"/robots.txt": typed(b"", "text/plain")}
        world.pages["/robots.txt"] = moved(other.base + "/robots.txt")
        world.requests.clear()
        await world.crawl(credential={"token": "t"})
        assert [request.headers.get("Authorization") for request in other.requests] == [None]
        assert {request.headers.get("Authorization") for request in world.requests} == {"Bearer t"}
    with pytest.raises(SourceError, match="credential"):
        await world.crawl(credential={"key": "x"})
