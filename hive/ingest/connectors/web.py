"""The ``web`` connector: one site, breadth first, politely, asking only for what changed.

    frontier ─▶ up to 4 pages side by side ─▶ 304: unchanged, its stored links followed
                                          └─▶ 200: links ─▶ frontier; main text ─▶ document

The pages of one round are handled in the order they were found, so that a crawl of the same site is the same
crawl, and a checkpoint between two rounds is a clean cut.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final, assert_never, cast

from pydantic import BaseModel
from yarl import URL

from hive.ingest.connectors.port import (
    Checkpoint,
    DocumentFailure,
    Item,
    Known,
    Pause,
    SourceDocument,
    SourceError,
    Unchanged,
)
from hive.ingest.connectors.robots import Robots, robots_of
from hive.ingest.connectors.sitemap import Sitemap, parse_sitemap
from hive.ingest.connectors.web_client import (
    Answer,
    Busy,
    Failed,
    Loaded,
    NotModified,
    Skipped,
    WebClient,
)
from hive.ingest.connectors.web_config import WebConfig
from hive.ingest.connectors.web_frontier import Entry, Frontier
from hive.ingest.connectors.web_urls import Site, Wanted, may_be_page, page_key, parsed_url
from hive.ingest.parsing.html import PageLinks
from hive.ingest.parsing.parsed import PARSING_VERSION, Parsed, ParseFailure
from hive.ingest.parsing.reader import format_of, read, read_page

Json = Any

SIDE_BY_SIDE: Final = 4
CHECKPOINT_DOCUMENTS: Final = 16
CHECKPOINT_SECONDS: Final = 5.0
MAX_STORED_LINKS: Final = 2000
MAX_SITEMAPS: Final = 100
MAX_PATIENCE_SECONDS: Final = 60.0  # a longer Retry-After ends the run, which comes back by itself
BUSY_ANSWERS: Final = 3
DEAD_IN_A_ROW: Final = 10
_PAUSE_SECONDS: Final = 10.0
_XML_TYPES: Final = frozenset(
    ("application/xml", "text/xml", "application/gzip", "application/x-gzip", "application/octet-stream")
)


class WebConnector:
    """Registered as ``web``.

    Credential: ``username`` and ``password``, or ``token``, sent to the site only.
    """

    kind = "web"
    Config: type[BaseModel] = WebConfig

    def items(
        self, config: BaseModel, credential: Mapping[str, Json] | None, checkpoint: Json | None, known: Known
    ) -> AsyncIterator[Item]:
        """Pages in breadth-first order; a checkpoint behind 16 documents or 5 seconds.

        Raises SourceError for what concerns the site: its robots.txt or all its start pages cannot be had, it
        asks for patience, or ten pages in a row did not answer. The checkpoint before it loses nothing.
        """
        assert isinstance(config, WebConfig)
        return _Crawl(config, credential, known).items(checkpoint)


class _Crawl:
    def __init__(self, config: WebConfig, credential: Mapping[str, Json] | None, known: Known) -> None:
        self._config = config
        self._known = known
        starts = [url for text in (*config.start, *config.sitemap) if (url := parsed_url(text))]
        if not starts:
            raise SourceError("bad_url", "no start URL can be used")
        self._home = starts[0]
        self._site = Site(self._home)
        self._wanted = Wanted(config.include, config.exclude)
        self._max_depth = 10 if config.max_depth is None else config.max_depth
        self._frontier = Frontier(max_pages=config.max_pages or 1000)
        self._robots = Robots(None, config.user_agent)
        self._reached = False  # some start page was read
        self._sitemaps = 0
        self._dead = 0
        self._busy: dict[str, int] = {}
        self._since = 0  # documents behind the last checkpoint
        self._checked_at = 0.0
        self._client = WebClient(
            self._site,
            user_agent=config.user_agent,
            request_seconds=config.request_seconds,
            max_bytes=config.max_document_bytes,
            allow_private=config.allow_private,
            credential=credential,
        )
        settings = repr((config.start, config.sitemap, config.include, config.exclude, self._max_depth))
        self._crawl_id = hashlib.sha256(settings.encode()).hexdigest()[:16]

    async def items(self, checkpoint: Json | None) -> AsyncIterator[Item]:
        async with self._client:
            self._robots = await robots_of(self._home, self._client, self._config.user_agent)
            self._begin(checkpoint)
            pause = max(self._config.pause_seconds, self._robots.delay_seconds)
            self._checked_at = _now()
            while entries := self._frontier.take(1 if pause else SIDE_BY_SIDE):
                async for item in self._round(entries):
                    yield item
                if self._since >= CHECKPOINT_DOCUMENTS or _now() - self._checked_at >= CHECKPOINT_SECONDS:
                    yield self._checkpoint()
                async for item in _wait(pause, "as the site asks" if pause else ""):
                    yield item
            yield self._checkpoint()

    def _begin(self, checkpoint: Json | None) -> None:
        state = cast(Mapping[str, Json], checkpoint) if isinstance(checkpoint, dict) else {}
        if state.get("crawl") == self._crawl_id:
            self._frontier.restore(state)
            self._reached = bool(state["reached"])
            return
        for number, text in enumerate((*self._config.start, *self._config.sitemap)):
            if url := parsed_url(text):
                sitemap = number >= len(self._config.start)
                self._frontier.add(Entry(url=url, depth=0, start=True, sitemap=sitemap))

    def _checkpoint(self) -> Checkpoint:
        self._since, self._checked_at = 0, _now()
        state = self._frontier.state()
        return Checkpoint(state={"crawl": self._crawl_id, "reached": self._reached, **state})

    async def _round(self, entries: Sequence[Entry]) -> AsyncIterator[Item]:
        stored = await self._known([entry.key for entry in entries])
        answers = await asyncio.gather(*(self._load(entry, stored.get(entry.key)) for entry in entries))
        self._reached = self._reached or any(isinstance(answer, Loaded | NotModified) for answer in answers)
        busy: list[tuple[Entry, Busy]] = []
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, Busy):
                busy.append((entry, answer))
                continue
            for item in self._handle(entry, answer, stored.get(entry.key)):
                self._since += 1
                yield item
        if busy:
            async for item in self._be_patient(busy):
                yield item
        if self._dead >= DEAD_IN_A_ROW:
            yield self._checkpoint()
            raise SourceError("unreachable", f"{self._home.host} stopped answering", transient=True)

    async def _load(self, entry: Entry, stored: Mapping[str, Json] | None) -> Answer:
        if not self._robots.allows(entry.url):
            return Skipped(reason="robots")
        # What another version of the parser made of the page is not what this one would make of it.
        usable = stored if stored is not None and stored.get("parsing") == PARSING_VERSION else {}
        return await self._client.get(
            entry.url,
            etag=usable.get("etag"),
            last_modified=usable.get("last_modified"),
            allowed=self._robots.allows,
            wanted_type=lambda url, kind: _readable(url, kind) or (entry.start and kind in _XML_TYPES),
        )

    def _handle(self, entry: Entry, answer: Answer, stored: Mapping[str, Json] | None) -> list[Item]:
        match answer:
            case Loaded():
                self._dead = 0
                if entry.sitemap or (entry.start and not _is_html(answer)):
                    sitemap = parse_sitemap(answer.data)
                    if sitemap is not None:
                        self._follow_sitemap(sitemap)
                        return []
                    if entry.sitemap:
                        return self._failed(entry, Failed(code="unparsable", summary="this is no sitemap"))
                return self._page(entry, answer)
            case NotModified():
                self._dead = 0
                self._follow(entry, [str(link) for link in (stored or {}).get("links", ())])
                return [Unchanged(count=1)] if self._frontier.count(entry.key) else []
            case Skipped():
                return self._skipped(entry, answer)
            case Failed():
                self._dead = self._dead + 1 if answer.transient else 0
                return self._failed(entry, answer)
            case Busy():
                return []  # handled by the round
            case _:
                assert_never(answer)

    def _skipped(self, entry: Entry, answer: Skipped) -> list[Item]:
        if not entry.start:
            return []
        summary = {
            "robots": "the site's robots.txt does not allow this crawler to read it",
            "off_site": "it redirects to another host; start there instead",
            "unsupported": "it is neither a page nor a sitemap, nor another format that can be read",
        }[answer.reason]
        return self._failed(entry, Failed(code=answer.reason, summary=f"{entry.url}: {summary}"))

    def _failed(self, entry: Entry, failed: Failed) -> list[Item]:
        if entry.start and not self._reached and not self._frontier.waiting_starts:
            raise SourceError(failed.code, failed.summary, transient=failed.transient)
        return [_failure(entry.key, str(entry.url), failed.code, failed.summary)]

    def _follow_sitemap(self, sitemap: Sitemap) -> None:
        """Its pages are read, their links not: whoever gives a sitemap has said which pages there are."""
        for text in sitemap.sitemaps:
            url = parsed_url(text)
            own = self._site.own(url) if url else None
            if own is not None and self._sitemaps < MAX_SITEMAPS:
                self._sitemaps += 1
                self._frontier.add(Entry(url=own, depth=0, start=True, sitemap=True))
        for text in sitemap.pages:
            self._add(parsed_url(text), self._max_depth)

    def _follow(self, entry: Entry, links: Sequence[str]) -> None:
        if entry.depth < self._max_depth:
            for text in links:
                self._add(parsed_url(text), entry.depth + 1)

    def _add(self, url: URL | None, depth: int) -> None:
        own = self._site.own(url) if url is not None else None
        if own is not None and may_be_page(own) and self._wanted.fits(own):
            self._frontier.add(Entry(url=own, depth=depth))

    def _page(self, entry: Entry, loaded: Loaded) -> list[Item]:
        kind = format_of(loaded.url.name, loaded.content_type)
        name = loaded.url.name or loaded.url.host or str(loaded.url)
        key, links = page_key(loaded.url), PageLinks.none()
        try:
            if kind == "html":
                page = read_page(loaded.data, name, charset=loaded.charset)
                links, content = page.links, page.content
                key = self._canonical(loaded.url, links) or key
            else:
                content = read(loaded.data, name, kind=kind, charset=loaded.charset)
        except ParseFailure as failure:
            content = failure
        follow = (
            [] if links.nofollow or "nofollow" in loaded.robots_header else self._own_links(loaded, links)
        )
        self._follow(entry, follow)
        noindex = links.noindex or "noindex" in loaded.robots_header
        excluded = entry.start and not self._wanted.fits(loaded.url)
        if noindex or excluded or not self._frontier.count(key):
            return []
        if isinstance(content, ParseFailure):
            return [_failure(key, str(loaded.url), content.code, content.summary)]
        return [self._document(key, loaded, content, follow, kind or "text")]

    def _canonical(self, url: URL, links: PageLinks) -> str | None:
        """The page's own word for its identity, if credible: on this site, and not just the home page."""
        if links.canonical is None:
            return None
        canonical = parsed_url(links.canonical, url)
        own = self._site.own(canonical) if canonical is not None else None
        if own is None or (own.raw_path == "/" and url.raw_path != "/"):
            return None  # sites that name their home page everywhere would shrink to one document
        return page_key(own)

    def _own_links(self, loaded: Loaded, links: PageLinks) -> list[str]:
        base = loaded.url
        if links.base and (given := parsed_url(links.base, loaded.url)):
            base = given
        found: dict[str, None] = {}
        for href in links.hrefs:
            if href.startswith("#"):
                continue
            url = parsed_url(href, base)
            own = self._site.own(url) if url is not None else None
            if own is not None and may_be_page(own):
                found.setdefault(str(own))
        return list(found)

    def _document(
        self, key: str, loaded: Loaded, parsed: Parsed, links: Sequence[str], kind: str
    ) -> SourceDocument:
        state: dict[str, Json] = {}
        # Without its links, an unchanged page would be a dead end for the next crawl: then it is read again.
        if (loaded.etag or loaded.last_modified) and len(links) <= MAX_STORED_LINKS:
            state = {
                "parsing": PARSING_VERSION,
                "etag": loaded.etag,
                "last_modified": loaded.last_modified,
                "links": list(links),
            }
        return SourceDocument(
            source_id=key,
            title=parsed.title,
            link=str(loaded.url),
            sections=parsed.sections,
            source_state=state,
            metadata={"format": kind, **parsed.metadata},
        )

    async def _be_patient(self, busy: Sequence[tuple[Entry, Busy]]) -> AsyncIterator[Item]:
        """Wait as long as the server asks, then try again; too long or too often: leave it for later."""
        again: list[Entry] = []
        wait = 0.0
        limited: Busy | None = None
        for entry, answer in busy:
            tries = self._busy[entry.key] = self._busy.get(entry.key, 0) + 1
            asked = answer.retry_after_seconds
            if tries >= BUSY_ANSWERS and answer.status == 503 and asked is None:
                self._dead += 1
                summary = f"{entry.url} answered 503 {tries} times"
                for item in self._failed(entry, Failed(code="unavailable", summary=summary, transient=True)):
                    yield item
                continue
            again.append(entry)
            wait = max(wait, 2.0**tries if asked is None else asked)
            if tries >= BUSY_ANSWERS or wait > MAX_PATIENCE_SECONDS:
                limited = answer
        self._frontier.put_back(again)
        if limited is not None:
            yield self._checkpoint()
            raise SourceError(
                "rate_limited" if limited.status == 429 else "unavailable",
                f"{self._home.host} asks for patience ({limited.status})",
                transient=True,
                retry_after_seconds=wait,
            )
        async for item in _wait(wait, "the site asks for patience"):
            yield item


async def _wait(seconds: float, why: str) -> AsyncIterator[Item]:
    """Sleep, saying every ten seconds that this is a wait and no stall."""
    end = _now() + seconds
    while (left := end - _now()) > 0:
        yield Pause(note=why)
        await asyncio.sleep(min(left, _PAUSE_SECONDS))


def _now() -> float:
    return asyncio.get_running_loop().time()


def _readable(url: URL, content_type: str) -> bool:
    return format_of(url.name, content_type) is not None


def _is_html(loaded: Loaded) -> bool:
    return format_of(loaded.url.name, loaded.content_type) == "html"


def _failure(source_id: str, link: str, code: str, summary: str) -> DocumentFailure:
    return DocumentFailure(source_id=source_id, link=link, code=code, summary=summary)
