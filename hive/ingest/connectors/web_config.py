"""What the ``web`` connector is told: by its owner, and by hive. Light: the parent imports it too."""

import ipaddress
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
MAX_PAGES = 100_000
MAX_DEPTH = 100


def _url(text: str) -> str:
    text = text.strip()
    if any(ord(character) <= 0x20 or ord(character) == 0x7F for character in text):
        raise ValueError("a URL contains no spaces or control characters")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"not a URL: {error}") from error
    if parts.scheme.lower() not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if not parts.hostname or port == 0:
        raise ValueError("must name a host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain a user or password; give a credential instead")
    return text


def _list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _pattern(text: str) -> str:
    if not text.strip():
        raise ValueError("a pattern must not be empty")
    return text


Url = Annotated[str, AfterValidator(_url)]
Urls = Annotated[tuple[Url, ...], BeforeValidator(_list)]
Pattern = Annotated[str, AfterValidator(_pattern)]


class WebSource(BaseModel):
    """What its owner may say. ``start``: first pages, or sitemaps, on one host; ``sitemap``: sitemaps only.

    ``include`` and ``exclude`` are patterns over a URL's path (or all of it, if they contain ``://``); ``*``
    stands for anything. They decide what is followed and indexed; start pages are read for links regardless.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: Urls = ()
    sitemap: Urls = ()
    max_pages: Annotated[int, Field(ge=1, le=MAX_PAGES)] | None = None
    max_depth: Annotated[int, Field(ge=0, le=MAX_DEPTH)] | None = None
    include: tuple[Pattern, ...] = ()
    exclude: tuple[Pattern, ...] = ()
    allow_private: bool = False

    @model_validator(mode="after")
    def _fit(self) -> Self:
        urls = (*self.start, *self.sitemap)
        if not urls:
            raise ValueError("start: give at least one URL")
        if len({_site(url) for url in urls}) > 1:
            raise ValueError("start: all URLs must be on one host; add a connector for each host")
        if not self.allow_private:
            for url in urls:
                if _literally_private(urlsplit(url).hostname or ""):
                    raise ValueError(f"start: {url} is in a private network; allow_private permits that")
        return self


class WebConfig(WebSource):
    """What the child gets: hive adds how to behave."""

    user_agent: str = "hive-crawler"
    request_seconds: Positive = 30.0
    pause_seconds: Annotated[float, Field(ge=0)] = 0.0
    max_document_bytes: Count = 50 * 1024 * 1024


def _site(url: str) -> tuple[str, int | None]:
    parts = urlsplit(url)
    port = None if parts.port in (None, 80, 443) else parts.port
    return (parts.hostname or "").lower().removeprefix("www."), port


def _literally_private(host: str) -> bool:
    """What needs no look-up. The child checks each address that it connects to; this only says it earlier."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return not ipaddress.ip_address(host).is_global
    except ValueError:
        return False
