"""The web connector against a server that behaves in every way servers do."""

import asyncio
import gzip

import pytest
from aiohttp import web as server_side

import document_samples as samples
from hive.ingest.connectors.port import (
    Checkpoint,
    Pause,
    SourceDocument,
    SourceError,
)
from hive.ingest.connectors.web import WebConnector
from hive.ingest.connectors.web_config import WebConfig
from web_world import World, moved, never, page, typed, unchanged


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
