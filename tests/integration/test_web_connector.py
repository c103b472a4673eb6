"""The web connector against a server that behaves in every way servers do."""

import asyncio
import gzip
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web as server_side
from yarl import URL

import document_samples as samples
from hive.ingest.connectors.port import (
    Checkpoint,
    DocumentFailure,
    Item,
    Json,
    Pause,
    SourceDocument,
    SourceError,
    Unchanged,
)
from hive.ingest.connectors.web import WebConnector
from hive.ingest.connectors.web_client import Failed, WebClient
from hive.ingest.connectors.web_config import WebConfig
from hive.ingest.connectors.web_urls import Site

Respond = Callable[[server_side.Request], Any]


def page(text: str = "text", *links: str, head: str = "") -> str:
    anchors = "".join(f'<a href="{link}">to {link}</a> ' for link in links)
    main = f"<main><h1>{text}</h1><p>About {text}.</p></main>"
    return f"<html><head>{head}</head><body><nav>{anchors}</nav>{main}</body>"


class World:
    """A site: path → text, bytes, a response, or a function of the request. Remembers what was asked for."""

    def __init__(self, host: str, port: int) -> None:
        self.base = f"http://{host}:{port}"
        self.pages: dict[str, str | bytes | Respond] = {}
        self.validators = False
        self.requests: list[server_side.Request] = []
        self.known: dict[str, Mapping[str, Json]] = {}

    async def answer(self, request: server_side.Request) -> server_side.StreamResponse:
        self.requests.append(request)
        found = self.pages.get(request.path_qs)
        if found is None:
            raise server_side.HTTPNotFound
        if callable(found):
            result = found(request)
            return await result if asyncio.iscoroutine(result) else result
        response = html(found)
        if self.validators:
            response.headers["ETag"] = f'"{hash(found)}"'
            if request.headers.get("If-None-Match") == response.headers["ETag"]:
                return server_side.Response(status=304)
        return response

    def asked(self) -> list[str]:
        return [request.path_qs for request in self.requests if request.path != "/robots.txt"]

    async def ask(self, source_ids: Sequence[str]) -> Mapping[str, Mapping[str, Json]]:
        return {source_id: self.known[source_id] for source_id in source_ids if source_id in self.known}

    async def crawl(
        self, start: str = "/", *, checkpoint: Json = None, credential: Any = None, **config: Any
    ) -> list[Item]:
        items: list[Item] = []
        async for item in self.items(start, checkpoint=checkpoint, credential=credential, **config):
            items.append(item)
            if isinstance(item, SourceDocument):
                self.known[item.source_id] = item.source_state
        return items

    def items(
        self, start: str = "/", *, checkpoint: Json = None, credential: Any = None, **config: Any
    ) -> AsyncIterator[Item]:
        settings = {"start": self.base + start, "allow_private": True, "request_seconds": 10.0, **config}
        return WebConnector().items(WebConfig.model_validate(settings), credential, checkpoint, self.ask)

    def ids(self, items: Sequence[Item]) -> list[str]:
        return [item.source_id.removeprefix(self.base) for item in items if isinstance(item, SourceDocument)]

    def failures(self, items: Sequence[Item]) -> dict[str, str]:
        return {
            item.source_id.removeprefix(self.base): item.code
            for item in items
            if isinstance(item, DocumentFailure)
        }


def html(body: str | bytes, **more: Any) -> server_side.Response:
    data = body.encode() if isinstance(body, str) else body
    return server_side.Response(body=data, headers={"Content-Type": "text/html; charset=utf-8"}, **more)


def typed(body: bytes, content_type: str) -> Respond:
    return lambda _: server_side.Response(body=body, headers={"Content-Type": content_type})


def moved(to: str, status: int = 302) -> Respond:
    return lambda _: server_side.Response(status=status, headers={"Location": to})


async def never(_: server_side.Request) -> server_side.Response:
    await asyncio.Event().wait()
    raise AssertionError


@asynccontextmanager
async def serving(host: str = "127.0.0.1") -> AsyncIterator[World]:
    application = server_side.Application()
    runner = server_side.AppRunner(application, shutdown_timeout=0.1, handler_cancellation=True)
    worlds: list[World] = []

    async def answer(request: server_side.Request) -> server_side.StreamResponse:
        return await worlds[0].answer(request)

    application.router.add_route("*", "/{path:.*}", answer)
    await runner.setup()
    site = server_side.TCPSite(runner, host, 0)
    await site.start()
    port = runner.addresses[0][1]
    worlds.append(World(host, port))
    try:
        yield worlds[0]
    finally:
        await runner.cleanup()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with serving() as served:
        yield served


def unchanged(items: Sequence[Item]) -> int:
    return sum(item.count for item in items if isinstance(item, Unchanged))


async def test_follows_links_breadth_first_on_its_host_only(world: World) -> None:
    world.pages = {
        "/": page("home", "b", "a#part", "http://other.example/", "mailto:x@y", "/image.png", "a"),
        "/a": page("a", "c", "/"),
        "/b": page("b", "/d?x=1&amp;y=2"),
        "/c": page("c"),
        "/d?x=1&y=2": page("d"),
    }
    items = await world.crawl()
    assert world.ids(items) == ["/", "/b", "/a", "/d?x=1&y=2", "/c"]
    assert world.failures(items) == {}
    assert sorted(world.asked()) == sorted(world.pages)
    assert isinstance(items[-1], Checkpoint)
    first = items[0]
    assert isinstance(first, SourceDocument)
    assert (first.title, first.link) == ("home", world.base + "/")
    assert first.sections[0].body == "About home."


async def test_depth_and_page_limits(world: World) -> None:
    world.pages = {f"/{number}": page(str(number), f"/{number + 1}", "/gone") for number in range(60)}
    assert world.ids(await world.crawl("/0", max_depth=2)) == ["/0", "/1", "/2"]
    assert world.ids(await world.crawl("/0", max_depth=0)) == ["/0"]
    assert len(world.ids(await world.crawl("/0", max_pages=7, max_depth=100))) == 7


async def test_include_and_exclude(world: World) -> None:
    world.pages = {
        "/": page("home", "/docs/a", "/blog/b", "/docs/old/c"),
        "/docs/a": page("a"),
        "/docs/old/c": page("c"),
        "/blog/b": page("b"),
    }
    assert world.ids(await world.crawl(include=["/docs/*"], exclude=["/docs/old/*"])) == ["/docs/a"]


async def test_second_crawl_asks_conditionally_and_still_finds_its_way(world: World) -> None:
    world.validators = True
    world.pages = {"/": page("home", "/a"), "/a": page("a", "/b"), "/b": page("b")}
    assert len(world.ids(await world.crawl())) == 3
    again = await world.crawl()
    assert (world.ids(again), unchanged(again)) == ([], 3)
    world.pages["/b"] = page("b anew", "/c")
    world.pages["/c"] = page("c")
    again = await world.crawl()
    assert (world.ids(again), unchanged(again)) == (["/b", "/c"], 2)


async def test_last_modified_is_a_validator_too(world: World) -> None:
    seen: list[str | None] = []

    def answer(request: server_side.Request) -> server_side.Response:
        seen.append(request.headers.get("If-Modified-Since"))
        if seen[-1]:
            return server_side.Response(status=304)
        return server_side.Response(
            text=page(), content_type="text/html", headers={"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
        )

    world.pages = {"/": answer}
    await world.crawl()
    assert unchanged(await world.crawl()) == 1
    assert seen == [None, "Wed, 21 Oct 2015 07:28:00 GMT"]


async def test_a_page_without_validators_or_of_an_older_parser_is_read_again(world: World) -> None:
    world.pages = {"/": page("home")}
    assert world.ids(await world.crawl()) == ["/"]
    assert world.ids(await world.crawl()) == ["/"]
    world.validators = True
    await world.crawl()
    key = world.base + "/"
    world.known[key] = {**world.known[key], "parsing": -1}
    assert world.ids(await world.crawl()) == ["/"]


async def test_redirects_and_canonical_addresses_make_one_document(world: World) -> None:
    world.pages = {
        "/": page("home", "/old", "/new", "/new?print=1", "/folder/index.html", "/folder/", "/away"),
        "/old": moved("/new", 301),
        "/new": page("new"),
        "/new?print=1": page("new", head='<link rel="canonical" href="/new">'),
        "/folder/": page("folder"),
        "/folder/index.html": page("folder"),
        "/away": moved("http://other.example/"),
    }
    items = await world.crawl()
    assert world.ids(items) == ["/", "/new", "/folder/"]
    assert world.failures(items) == {}


async def test_incredible_canonical_addresses_are_ignored(world: World) -> None:
    home = '<link rel="canonical" href="/">'
    world.pages = {
        "/": page("home", "/a", "/b", head=home),
        "/a": page("a", head=home),
        "/b": page("b", head='<link rel="canonical" href="https://elsewhere.example/b">'),
    }
    assert world.ids(await world.crawl()) == ["/", "/a", "/b"]


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
    items = await world.crawl(request_seconds=0.5)
    assert world.ids(items) == ["/", "/ok"]
    assert world.failures(items) == {"/slow": "timeout"}
    with pytest.raises(SourceError, match="did not answer") as caught:
        await world.crawl("/slow", request_seconds=0.5)
    assert caught.value.transient
    world.pages["/robots.txt"] = never
    with pytest.raises(SourceError) as caught:
        await world.crawl("/", request_seconds=0.5)
    assert (caught.value.code, caught.value.transient) == ("timeout", True)


async def test_a_body_that_drips_for_ever_is_cut_off(world: World) -> None:
    async def drip(request: server_side.Request) -> server_side.StreamResponse:
        response = server_side.StreamResponse(headers={"Content-Type": "text/html"})
        await response.prepare(request)
        while True:
            await response.write(b"<p>x")
            await asyncio.sleep(0.01)

    world.pages = {"/": page("home", "/drip"), "/drip": drip}
    assert world.failures(await world.crawl(request_seconds=0.5)) == {"/drip": "timeout"}


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


async def test_robots_are_obeyed(world: World) -> None:
    world.pages = {
        "/robots.txt": typed(
            b"User-agent: *\nDisallow: /private\n\nUser-agent: bad\nDisallow: /\n", "text/plain"
        ),
        "/": page("home", "/private/x", "/sneaky", "/ok"),
        "/sneaky": moved("/private/y"),
        "/private/x": page("x"),
        "/private/y": page("y"),
        "/ok": page("ok"),
    }
    items = await world.crawl()
    assert world.ids(items) == ["/", "/ok"]
    assert world.failures(items) == {}
    assert not [path for path in world.asked() if path.startswith("/private")]
    with pytest.raises(SourceError) as caught:
        await world.crawl("/private/x")
    assert (caught.value.code, caught.value.transient) == ("robots", False)
    with pytest.raises(SourceError, match=r"robots\.txt"):
        await world.crawl(user_agent="bad/1.0 (+http://example.org)")


@pytest.mark.parametrize(
    ("status", "allowed"), [(404, True), (403, True), (410, True), (500, False), (503, False)]
)
async def test_robots_that_cannot_be_had(world: World, status: int, allowed: bool) -> None:
    world.pages = {"/": page("home"), "/robots.txt": lambda _: server_side.Response(status=status)}
    if allowed:
        assert world.ids(await world.crawl()) == ["/"]
        return
    with pytest.raises(SourceError) as caught:
        await world.crawl()
    assert caught.value.transient
    assert world.asked() == []


async def test_crawl_delay_is_waited_out_with_signs_of_life(world: World) -> None:
    world.pages = {
        "/robots.txt": typed(b"User-agent: *\nCrawl-delay: 0.2\n", "text/plain"),
        "/": page("home", "/a", "/b"),
        "/a": page("a"),
        "/b": page("b"),
    }
    begun = asyncio.get_running_loop().time()
    items = await world.crawl()
    assert asyncio.get_running_loop().time() - begun >= 0.4
    assert sum(isinstance(item, Pause) for item in items) >= 2
    assert world.ids(items) == ["/", "/a", "/b"]


async def test_meta_robots_and_their_header(world: World) -> None:
    header = {"Content-Type": "text/html", "X-Robots-Tag": "noindex"}
    world.pages = {
        "/": page("home", "/list", "/end", "/header"),
        "/list": page("list", "/leaf", head='<meta name="robots" content="noindex">'),
        "/leaf": page("leaf"),
        "/end": page("end", "/beyond", head='<meta name="robots" content="nofollow">'),
        "/beyond": page("beyond"),
        "/header": lambda _: server_side.Response(text=page("header"), headers=header),
    }
    assert world.ids(await world.crawl()) == ["/", "/end", "/leaf"]


@pytest.mark.parametrize("packed", [False, True])
async def test_sitemaps_name_the_pages(world: World, packed: bool) -> None:
    index = f"<sitemapindex><sitemap><loc>{world.base}/one.xml</loc></sitemap></sitemapindex>".encode()
    one = (
        '<?xml version="1.0" encoding="UTF-8"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">'
        f"<url><loc>{world.base}/a</loc></url><url><loc>{world.base}/b</loc></url>"
        "<url><loc>http://other.example/c</loc></url></urlset>"
    ).encode()
    world.pages = {
        "/sitemap.xml": typed(
            gzip.compress(index) if packed else index, "application/gzip" if packed else "text/xml"
        ),
        "/one.xml": typed(gzip.compress(one) if packed else one, "application/xml"),
        "/a": page("a", "/not-listed"),
        "/b": page("b"),
        "/not-listed": page("not listed"),
    }
    assert world.ids(await world.crawl("/sitemap.xml")) == ["/a", "/b"]
    config = WebConfig.model_validate({"sitemap": world.base + "/one.xml", "allow_private": True})
    assert world.ids([item async for item in WebConnector().items(config, None, None, world.ask)]) == [
        "/a",
        "/b",
    ]


async def test_other_formats_are_read_or_passed_over(world: World) -> None:
    world.pages = {
        "/": page("home", "/report", "/readme.md", "/notes.txt", "/data", "/broken.pdf", "/empty"),
        "/report": typed(samples.pdf(["an okapi"], title="Report"), "application/pdf"),
        "/readme.md": typed(b"# Read me\n\ntext\n", "text/plain"),
        "/notes.txt": typed("café".encode("cp1252"), "text/plain; charset=windows-1252"),
        "/data": typed(b"{}", "application/json"),
        "/broken.pdf": typed(b"%PDF-1.7 not really", "application/pdf"),
        "/empty": "",
    }
    items = await world.crawl()
    assert world.ids(items) == ["/", "/report", "/readme.md", "/notes.txt"]
    assert world.failures(items) == {"/broken.pdf": "unparsable", "/empty": "empty"}
    notes = next(
        item for item in items if isinstance(item, SourceDocument) and item.source_id.endswith("notes.txt")
    )
    assert notes.sections[0].body == "café"


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


async def test_goes_on_behind_any_checkpoint(world: World) -> None:
    count = 70
    world.pages = {
        f"/{number}": page(str(number), *(f"/{(number * 3 + step) % count}" for step in range(3)))
        for number in range(count)
    }
    everything = await world.crawl("/0", max_pages=count)
    assert len(world.ids(everything)) == count
    marks = [index for index, item in enumerate(everything) if isinstance(item, Checkpoint)]
    assert len(marks) >= 4
    for mark in marks:
        item = everything[mark]
        assert isinstance(item, Checkpoint)
        rest = await world.crawl("/0", checkpoint=item.state, max_pages=count)
        assert world.ids(everything[:mark]) + world.ids(rest) == world.ids(everything)


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


async def test_leaving_early_leaves_nothing_behind(world: World) -> None:
    world.pages = {"/": page("home", "/slow"), "/slow": never}
    items = world.items()
    assert isinstance(await anext(items), SourceDocument)
    before = asyncio.all_tasks()
    waiting = asyncio.ensure_future(anext(items))
    while "/slow" not in world.asked():
        await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    with pytest.raises(StopAsyncIteration):
        await anext(items)
    assert {task for task in asyncio.all_tasks() - before if "web_client" in repr(task)} == set()
