"""A web server in the test's own hands, for the web connector."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web as server_side

from hive.ingest.connectors.port import (
    DocumentFailure,
    Item,
    Json,
    SourceDocument,
    Unchanged,
)
from hive.ingest.connectors.web import WebConnector
from hive.ingest.connectors.web_config import WebConfig

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


def unchanged(items: Sequence[Item]) -> int:
    return sum(item.count for item in items if isinstance(item, Unchanged))
