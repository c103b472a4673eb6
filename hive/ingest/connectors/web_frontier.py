"""Which pages a crawl still has to read: breadth first, each once, never more than it could read anyway."""

import base64
import hashlib
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from yarl import URL

from hive.ingest.connectors.web_urls import page_key

_DIGEST_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A page to read. ``depth``: links between it and a start. ``start``: the configuration names it."""

    url: URL
    depth: int
    start: bool = False
    sitemap: bool = False

    @property
    def key(self) -> str:
        """The page's identity."""
        return page_key(self.url)


class Frontier:
    """``max_pages`` counts documents. Requests are bounded too, so that a site of mere redirects ends."""

    def __init__(self, *, max_pages: int) -> None:
        self._max_pages = max_pages
        self._max_seen = 100 + 3 * max_pages
        self._queue: deque[Entry] = deque()
        self._seen: set[bytes] = set()
        self._documents: set[bytes] = set()

    @property
    def waiting_starts(self) -> bool:
        """Whether a page that the configuration names is still to be read."""
        return any(entry.start for entry in self._queue)

    def add(self, entry: Entry) -> None:
        """Put a page at the end of the line, if it is new and could still be reached."""
        digest = _digest(entry.key)
        if digest not in self._seen and len(self._seen) < self._max_seen:
            self._seen.add(digest)
            self._queue.append(entry)

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Pages that could not be read just now, at the head of the line, in their order."""
        self._queue.extendleft(reversed(list(entries)))

    def take(self, count: int) -> list[Entry]:
        """The next pages, no more than ``max_pages`` allows; none: the crawl is over."""
        taken: list[Entry] = []
        while self._queue and len(taken) < min(count, self._max_pages - len(self._documents)):
            entry = self._queue.popleft()
            if _digest(entry.key) not in self._documents:  # read meanwhile, under another URL
                taken.append(entry)
        return taken

    def count(self, key: str) -> bool:
        """Note a document; False if it was there before."""
        digest = _digest(key)
        if digest in self._documents:
            return False
        self._documents.add(digest)
        return True

    def state(self) -> dict[str, Any]:
        """All of it, as JSON."""
        return {
            "queue": [_entry_state(entry) for entry in self._queue],
            "seen": _packed(self._seen),
            "documents": _packed(self._documents),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from ``state()``."""
        self._queue = deque(
            Entry(url=URL(url), depth=depth, start="s" in flags, sitemap="m" in flags)
            for url, depth, flags in state["queue"]
        )
        self._seen = _unpacked(state["seen"])
        self._documents = _unpacked(state["documents"])


def _entry_state(entry: Entry) -> list[Any]:
    return [str(entry.url), entry.depth, "s" * entry.start + "m" * entry.sitemap]


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=_DIGEST_BYTES).digest()


def _packed(digests: set[bytes]) -> str:
    return base64.b64encode(b"".join(sorted(digests))).decode("ascii")


def _unpacked(text: str) -> set[bytes]:
    data = base64.b64decode(text)
    return {data[index : index + _DIGEST_BYTES] for index in range(0, len(data), _DIGEST_BYTES)}
