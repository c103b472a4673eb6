"""One polite HTTP client: redirects by hand, bodies bounded, private networks refused, answers as values."""

import asyncio
import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
from yarl import URL

from hive.ingest.connectors.port import SourceError
from hive.ingest.connectors.private_networks import PrivateAddress, public_socket
from hive.ingest.connectors.web_urls import Site, parsed_url
from hive.retry_after import retry_after_seconds

MAX_REDIRECTS = 10
_ACCEPT = "text/html,application/xhtml+xml,text/markdown,text/plain;q=0.9,application/pdf;q=0.8,*/*;q=0.5"
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_READ_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A body. ``url``: where it was in the end. ``truncated``: only its beginning, as asked."""

    url: URL
    content_type: str
    charset: str | None
    data: bytes
    etag: str | None
    last_modified: str | None
    robots_header: str
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NotModified:
    """The stored version is still the right one."""

    url: URL


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """Nothing for us, and no failure: ``off_site``, ``robots``, ``unsupported``."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """No page. ``transient``: later it may be another story. ``status``: 0 when there was no answer."""

    code: str
    summary: str
    transient: bool = False
    status: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """The server asks for patience (429, 503). ``retry_after_seconds``: for how much, if it says so."""

    status: int
    retry_after_seconds: float | None


Answer = Loaded | NotModified | Skipped | Failed | Busy


class WebClient:
    """Asks for pages of one site. An async context manager; requests may run side by side.

    ``request_seconds`` bounds a request with all its redirects and its body. ``credential``: ``username`` and
    ``password``, or ``token``; sent to the site only.
    """

    def __init__(
        self,
        site: Site,
        *,
        user_agent: str,
        request_seconds: float,
        max_bytes: int,
        allow_private: bool,
        credential: Mapping[str, Any] | None,
    ) -> None:
        self._site = site
        self._request_seconds = request_seconds
        self._max_bytes = max_bytes
        self._allow_private = allow_private
        self._headers = {"User-Agent": user_agent, "Accept": _ACCEPT}
        self._authorization = _authorization(credential)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit_per_host=8, socket_factory=None if self._allow_private else public_socket
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers=self._headers,
            timeout=aiohttp.ClientTimeout(total=None),  # one deadline over all redirects: below
            auto_decompress=True,
            trust_env=False,  # a proxy from the environment would connect where it likes
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(
        self,
        url: URL,
        *,
        etag: str | None = None,
        last_modified: str | None = None,
        allowed: Callable[[URL], bool] = lambda _: True,
        wanted_type: Callable[[URL, str], bool] = lambda _url, _type: True,
        stay: bool = True,
        truncate_at: int | None = None,
    ) -> Answer:
        """The page at ``url``. Never raises for what a server does; cancellation closes the connection.

        ``allowed``: asked again for each redirect's target (robots.txt). ``wanted_type``: by URL and content
        type, before the body is read. ``stay``: leave redirects to other hosts alone. ``truncate_at``: stop
        reading there.
        """
        conditions = {"If-None-Match": etag, "If-Modified-Since": last_modified}
        headers = {name: value for name, value in conditions.items() if value}
        visited: set[str] = set()
        try:
            async with asyncio.timeout(self._request_seconds):
                for _ in range(MAX_REDIRECTS + 1):
                    if str(url) in visited:
                        return Failed(code="redirect_loop", summary=f"redirects lead in a circle at {url}")
                    visited.add(str(url))
                    answer = await self._once(url, headers, wanted_type, truncate_at)
                    if not isinstance(answer, URL):
                        return answer
                    headers = {}  # they are about the page that redirects, not about the target
                    target = self._site.own(answer)
                    if target is None and stay:
                        return Skipped(reason="off_site")
                    url = target or answer
                    if not allowed(url):
                        return Skipped(reason="robots")
                return Failed(code="redirect_loop", summary=f"more than {MAX_REDIRECTS} redirects")
        except TimeoutError:
            summary = f"{url} did not answer within {self._request_seconds:g} s"
            return Failed(code="timeout", summary=summary, transient=True)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return _failure(url, error)

    async def _once(
        self,
        url: URL,
        headers: Mapping[str, str],
        wanted_type: Callable[[URL, str], bool],
        truncate_at: int | None,
    ) -> Answer | URL:
        """One request; a URL is a redirect's target."""
        assert self._session is not None
        if self._authorization and self._site.own(url) is not None:
            headers = {**headers, "Authorization": self._authorization}
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            status = response.status
            if status in _REDIRECTS:
                target = parsed_url(response.headers.get("Location", ""), url)
                return target or Failed(
                    code="bad_redirect", summary=f"{url} redirects to nowhere", status=status
                )
            if status == 304 and headers:
                return NotModified(url=url)
            if status in (429, 503):
                return Busy(status=status, retry_after_seconds=retry_after_seconds(response.headers))
            if status != 200:
                return _refusal(url, status)
            if not wanted_type(url, response.content_type):
                return Skipped(reason="unsupported")
            return await self._body(url, response, truncate_at)

    async def _body(
        self, url: URL, response: aiohttp.ClientResponse, truncate_at: int | None
    ) -> Loaded | Failed:
        limit = truncate_at or self._max_bytes
        if truncate_at is None and (response.content_length or 0) > limit:
            return _too_large(limit)
        data = bytearray()
        truncated = False
        async for piece in response.content.iter_chunked(_READ_BYTES):  # unpacked: a bomb ends here too
            data += piece
            if len(data) > limit:
                if truncate_at is None:
                    return _too_large(limit)
                truncated = True
                break
        return Loaded(
            url=url,
            content_type=response.content_type,
            charset=response.charset,
            data=bytes(data[:limit]),
            etag=response.headers.get("ETag"),
            last_modified=response.headers.get("Last-Modified"),
            robots_header=response.headers.get("X-Robots-Tag", "").lower(),
            truncated=truncated,
        )


def _authorization(credential: Mapping[str, Any] | None) -> str | None:
    if not credential:
        return None
    match credential:
        case {"token": str(token), **rest} if not rest and token.isprintable():
            return f"Bearer {token}"
        case {"username": str(user), "password": str(password), **rest} if not rest:
            return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
        case _:
            raise SourceError("credential", "the credential must hold username and password, or token")


def _too_large(limit: int) -> Failed:
    return Failed(code="too_large", summary=f"more than {limit:,} bytes (documents.max_file_mb)")


def _refusal(url: URL, status: int) -> Failed:
    if status in (401, 403):
        return Failed(code="forbidden", summary=f"{url} answered {status}", status=status)
    if status in (404, 410):
        return Failed(code="not_found", summary=f"{url} answered {status}", status=status)
    if status >= 500:
        return Failed(code="server_error", summary=f"{url} answered {status}", transient=True, status=status)
    return Failed(code="unexpected_status", summary=f"{url} answered {status}", status=status)


def _failure(url: URL, error: Exception) -> Failed:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, PrivateAddress):
            summary = f"{url.host} is in a private network; allow_private permits that"
            return Failed(code="private_address", summary=summary)
        cause = cause.__cause__ or getattr(cause, "os_error", None)
    where = f"{url.host}:{url.port}"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return Failed(code="unknown_host", summary=f"no address is known for {url.host}", transient=True)
    if isinstance(error, aiohttp.ClientSSLError | aiohttp.ClientConnectorCertificateError):
        return Failed(code="certificate", summary=f"no secure connection to {where}: {error}"[:500])
    if isinstance(error, ValueError) and not isinstance(error, aiohttp.ClientError):
        return Failed(code="bad_url", summary=f"{url} cannot be asked for: {error}"[:500])
    reason = str(error) or type(error).__name__
    return Failed(code="unreachable", summary=f"cannot connect to {where}: {reason}"[:500], transient=True)
