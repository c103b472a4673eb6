"""URLs, hosts, patterns, addresses, the frontier: what decides where a crawl goes."""

import gzip
import json
import socket

import pytest
from yarl import URL

from hive.ingest.connectors.private_networks import PrivateAddress, is_public, public_socket
from hive.ingest.connectors.sitemap import parse_sitemap
from hive.ingest.connectors.web_frontier import Entry, Frontier
from hive.ingest.connectors.web_urls import Site, Wanted, may_be_page, page_key, parsed_url

BASE = URL("http://example.org/a/b.html")


def url(text: str) -> URL:
    parsed = parsed_url(text, BASE)
    assert parsed is not None
    return parsed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("c.html#part", "http://example.org/a/c.html"),
        ("../x", "http://example.org/x"),
        ("//example.org:80", "http://example.org/"),
        ("HTTP://EXAMPLE.org:80/A", "http://example.org/A"),
        ("https://example.org:443/", "https://example.org/"),
        ("https://example.org:80/", "https://example.org:80/"),
        ("http://example.org?q=1", "http://example.org/?q=1"),
        ("?q=1", "http://example.org/a/b.html?q=1"),
        ("/a/index.html", "http://example.org/a/"),
        ("/index.htm#x", "http://example.org/"),
        ("/a/index.html?page=2", "http://example.org/a/index.html?page=2"),
        ("/b\u00fccher", "http://example.org/b%C3%BCcher"),
    ],
)
def test_one_page_has_one_key(text: str, expected: str) -> None:
    assert page_key(url(text)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "mailto:a@b",
        "javascript:x()",
        "ftp://x/",
        "http://u:p@x/",
        "http://[",
        "x" * 3000,
        "data:,x",
    ],
)
def test_what_is_no_web_url(text: str) -> None:
    assert parsed_url(text, BASE) is None


def test_a_site_is_one_host() -> None:
    site = Site(URL("http://example.org/"))
    assert site.own(URL("http://www.example.org/x")) == URL("http://www.example.org/x")
    assert site.own(URL("https://example.org/x")) is not None
    for other in (
        "http://example.com/",
        "http://sub.example.org/",
        "http://example.org:8080/",
        "http://example.org.evil/",
    ):
        assert site.own(URL(other)) is None
    secure = Site(URL("https://example.org/"))
    assert secure.own(URL("http://example.org/x")) == URL("https://example.org/x")


def test_wanted_pages() -> None:
    wanted = Wanted(["/docs/*", "*.pdf"], ["*/old/*", "http://example.org/docs/secret*"])
    assert wanted.fits(URL("http://example.org/docs/a"))
    assert wanted.fits(URL("http://example.org/x/y.pdf"))
    assert not wanted.fits(URL("http://example.org/blog"))
    assert not wanted.fits(URL("http://example.org/docs/old/x"))
    assert not wanted.fits(URL("http://example.org/docs/secret.html"))
    assert Wanted([], []).fits(URL("http://example.org/anything"))


def test_endings_that_are_no_pages() -> None:
    assert not may_be_page(URL("http://x/a.PNG"))
    assert may_be_page(URL("http://x/a.html"))
    assert may_be_page(URL("http://x/release-3.11"))


@pytest.mark.parametrize(
    "address",
    [
        *(
            "127.0.0.1",
            "127.8.8.8",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
        ),
        *("224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "192.0.2.1", "198.18.0.1"),
        *("::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1"),
        *(
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a00:1",
            "2002:7f00:1::",
            "2002:a00:1::",
        ),
        *("::127.0.0.1", "not an address", ""),
    ],
)
def test_private_addresses(address: str) -> None:
    assert not is_public(address)
    with pytest.raises(PrivateAddress):
        public_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, 80)))


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "8.8.8.8", "2606:2800:220:1::1", "64:ff9b::808:808", "::ffff:8.8.8.8"]
)
def test_public_addresses(address: str) -> None:
    assert is_public(address)


def test_sitemaps() -> None:
    plain = b"""<?xml version="1.0"?><urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">
      <url><loc> http://x/a </loc><lastmod>2020</lastmod></url><url><loc>http://x/b</loc></url></urlset>"""
    found = parse_sitemap(plain)
    assert found is not None
    assert found.pages == ["http://x/a", "http://x/b"]
    assert parse_sitemap(gzip.compress(plain)) == found
    index = parse_sitemap(b"<sitemapindex><sitemap><loc>http://x/s.xml</loc></sitemap></sitemapindex>")
    assert index is not None
    assert (index.pages, index.sitemaps) == ([], ["http://x/s.xml"])
    for other in (b"", b"<html/>", b"nonsense", b"\x1f\x8bbroken", gzip.compress(b" " * 60_000_000)):
        assert parse_sitemap(other) is None
    bomb = b'<!DOCTYPE x [<!ENTITY a "http://x/bomb">]><urlset><url><loc>&a;</loc></url></urlset>'
    bombed = parse_sitemap(bomb)
    assert bombed is None or bombed.pages == []


def entry(name: str, depth: int = 0) -> Entry:
    return Entry(url=URL(f"http://x/{name}"), depth=depth)


def test_frontier_is_breadth_first_and_each_page_once() -> None:
    frontier = Frontier(max_pages=10)
    for name in ("a", "b", "a", "c", "index.html", ""):
        frontier.add(entry(name))
    assert [each.url.path for each in frontier.take(2)] == ["/a", "/b"]
    frontier.put_back([entry("a"), entry("b")])
    assert [each.url.path for each in frontier.take(9)] == ["/a", "/b", "/c", "/index.html"]


def test_frontier_counts_documents_and_bounds_requests() -> None:
    frontier = Frontier(max_pages=2)
    for number in range(1000):
        frontier.add(entry(str(number)))
    assert len(frontier.take(50)) == 2
    assert frontier.count("http://x/0")
    assert not frontier.count("http://x/0")
    assert len(frontier.take(50)) == 1
    assert frontier.count("http://x/1")
    assert frontier.take(50) == []
    assert len(json.dumps(frontier.state())) < 20_000


def test_frontier_goes_on_from_its_state() -> None:
    frontier = Frontier(max_pages=10)
    frontier.add(Entry(url=URL("http://x/s.xml"), depth=0, start=True, sitemap=True))
    for name in "abc":
        frontier.add(entry(name, 3))
    frontier.take(2)
    frontier.count("http://x/a")
    again = Frontier(max_pages=10)
    again.restore(json.loads(json.dumps(frontier.state())))
    assert again.state() == frontier.state()
    again.add(entry("a"))
    assert again.take(9) == [entry("b", 3), entry("c", 3)]
