"""URLs: one spelling per page, what belongs to the site, and which pages are wanted."""

import fnmatch
import re
from collections.abc import Sequence

from yarl import URL

MAX_URL_CHARACTERS = 2000
_INDEX_PAGES = frozenset(
    ("index.html", "index.htm", "index.xhtml", "index.php", "default.html", "default.htm")
)
_NEVER_PAGES = frozenset(
    (
        *(".png", ".jpg", ".jpeg", ".gif", ".svg", ".webp", ".avif", ".ico", ".bmp", ".tif", ".tiff"),
        *(".css", ".js", ".mjs", ".map", ".json", ".xml", ".rss", ".atom", ".woff", ".woff2", ".ttf", ".eot"),
        *(
            ".zip",
            ".gz",
            ".tgz",
            ".bz2",
            ".xz",
            ".zst",
            ".7z",
            ".rar",
            ".tar",
            ".whl",
            ".jar",
            ".deb",
            ".rpm",
        ),
        *(".mp3", ".mp4", ".webm", ".ogg", ".wav", ".avi", ".mov", ".mkv", ".exe", ".dmg", ".msi", ".iso"),
        *(".epub", ".bin", ".apk", ".img", ".wasm"),
    )
)


def parsed_url(text: str, base: URL | None = None) -> URL | None:
    """An http(s) URL without fragment, default port and dot segments; None for anything else.

    ``base``: what a relative one is relative to.
    """
    if len(text) > MAX_URL_CHARACTERS:
        return None
    try:
        url = URL(text.strip())
        if base is not None:
            url = base.join(url)
        if url.scheme not in ("http", "https") or not url.host or url.user or url.password:
            return None
        if url.explicit_port is not None and url.is_default_port():
            url = url.with_port(None)
        url = url.with_fragment(None)
        if url.raw_path == "/":
            url = url.with_path(
                "/", keep_query=True
            )  # else "http://host" keeps an empty path when written out
        return url if len(str(url)) <= MAX_URL_CHARACTERS else None
    except (ValueError, UnicodeError):
        return None


def page_key(url: URL) -> str:
    """The page's identity: its URL, where a folder and its index page are the same."""
    if url.raw_name.lower() in _INDEX_PAGES and not url.raw_query_string:
        return str(url.with_path(url.raw_path[: -len(url.raw_name)], encoded=True))
    return str(url)


def may_be_page(url: URL) -> bool:
    """Whether its ending does not already say that it is an image, an archive or the like."""
    return url.raw_suffix.lower() not in _NEVER_PAGES


class Site:
    """The one host that a crawl stays on. ``example.org`` and ``www.example.org`` are one host."""

    def __init__(self, start: URL) -> None:
        self._host = _bare(start)
        self._port = _unusual_port(start)
        self._secure = start.scheme == "https"

    def own(self, url: URL) -> URL | None:
        """The URL if it is on this site, else None. A secure site's pages are asked for securely."""
        if _bare(url) != self._host or _unusual_port(url) != self._port:
            return None
        if self._secure and url.scheme == "http":
            return url.with_scheme("https") if self._port is None else None
        return url


class Wanted:
    """``include`` and ``exclude`` over a URL's path and query; over all of it for patterns with ``://``."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._include = [_Pattern(pattern) for pattern in include]
        self._exclude = [_Pattern(pattern) for pattern in exclude]

    def fits(self, url: URL) -> bool:
        """Whether to follow and index it."""
        if any(pattern.fits(url) for pattern in self._exclude):
            return False
        return not self._include or any(pattern.fits(url) for pattern in self._include)


class _Pattern:
    def __init__(self, pattern: str) -> None:
        self._whole = "://" in pattern
        if not self._whole and not pattern.startswith(("/", "*")):
            pattern = f"*/{pattern}"
        self._expression = re.compile(fnmatch.translate(pattern))

    def fits(self, url: URL) -> bool:
        return bool(self._expression.match(str(url) if self._whole else url.raw_path_qs))


def _bare(url: URL) -> str:
    return (url.host or "").lower().removeprefix("www.").rstrip(".")


def _unusual_port(url: URL) -> int | None:
    # 443 on http and 80 on https are unusual; the two defaults count as one place.
    return None if url.is_default_port() else url.port
