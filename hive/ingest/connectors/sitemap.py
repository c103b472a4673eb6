"""Sitemaps (sitemaps.org): lists of pages, and lists of such lists, packed or not."""

import zlib
from dataclasses import dataclass

from hive.ingest.parsing.html_tree import Element, XmlError, etree

MAX_UNPACKED_BYTES = 50 * 1024 * 1024  # the protocol's own limit, as are 50,000 entries
MAX_ENTRIES = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sitemap:
    """``pages`` of a sitemap, or ``sitemaps`` of an index."""

    pages: list[str]
    sitemaps: list[str]


def parse_sitemap(data: bytes) -> Sitemap | None:
    """The entries in order, or None if this is no sitemap."""
    if data.startswith(b"\x1f\x8b"):
        unpacked = _unpacked(data)
        if unpacked is None:
            return None
        data = unpacked
    parser = etree.XMLParser(
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        recover=True,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root: Element | None = etree.fromstring(data, parser)
    except (XmlError, ValueError):
        return None
    if root is None:
        return None
    kind = _local(root.tag)
    if kind not in ("urlset", "sitemapindex"):
        return None
    found: list[str] = []
    for entry in root:
        if _local(entry.tag) in ("url", "sitemap"):
            for child in entry:
                if _local(child.tag) == "loc" and child.text and len(found) < MAX_ENTRIES:
                    found.append(child.text.strip())
    return Sitemap(pages=found if kind == "urlset" else [], sitemaps=found if kind == "sitemapindex" else [])


def _local(tag: object) -> str:
    return tag.rpartition("}")[2].lower() if isinstance(tag, str) else ""


def _unpacked(data: bytes) -> bytes | None:
    unpacker = zlib.decompressobj(wbits=31)
    try:
        result = unpacker.decompress(data, MAX_UNPACKED_BYTES)
    except zlib.error:
        return None
    return None if unpacker.unconsumed_tail else result
