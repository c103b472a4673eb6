"""The fault proxy: each fault, as both sides see it, over TCP and over Unix sockets."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hive.testing.fault_proxy import Endpoint, FaultProxy
from patience import until

Client = tuple[asyncio.StreamReader, asyncio.StreamWriter]
SECONDS = 10.0


@dataclass
class Echo:
    """A server that answers each line with itself, and says what happened to its connections."""

    endpoint: Endpoint
    lines: list[bytes] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    writers: list[asyncio.StreamWriter] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        try:
            while line := await reader.readline():
                self.lines.append(line)
                writer.write(line)
                await writer.drain()
            self.ends.append("end")
        except ConnectionError:
            self.ends.append("reset")
        finally:
            writer.close()


@pytest.fixture
def folder() -> Generator[Path]:
    with TemporaryDirectory(prefix="hive-") as name:  # short: a socket's path holds 107 bytes
        yield Path(name)


@asynccontextmanager
async def echo_and_proxy(kind: str, folder: Path) -> AsyncGenerator[tuple[Echo, FaultProxy]]:
    echo = Echo(Endpoint())
    if kind == "unix":
        echo.endpoint = Endpoint(path=str(folder / "echo"))
        server = await asyncio.start_unix_server(echo.serve, echo.endpoint.path)
        proxy = FaultProxy(echo.endpoint, Endpoint(path=str(folder / "proxy")))
    else:
        server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
        echo.endpoint = Endpoint(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
        proxy = FaultProxy(echo.endpoint)
    async with server, proxy:
        yield echo, proxy
        await proxy.close()
        assert proxy.connections == 0
        for writer in echo.writers:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@pytest.fixture(params=["tcp", "unix"])
async def both(request: pytest.FixtureRequest, folder: Path) -> AsyncGenerator[tuple[Echo, FaultProxy]]:
    async with echo_and_proxy(request.param, folder) as made:
        yield made


@pytest.fixture
async def clients() -> AsyncGenerator[Callable[[FaultProxy], Awaitable[Client]]]:
    made: list[asyncio.StreamWriter] = []

    async def connect(proxy: FaultProxy) -> Client:
        at = proxy.endpoint
        if at.path:
            reader, writer = await asyncio.open_unix_connection(at.path)
        else:
            reader, writer = await asyncio.open_connection(at.host, at.port)
        made.append(writer)
        return reader, writer

    yield connect
    for writer in made:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def answer(client: Client, line: bytes = b"hello\n") -> bytes:
    reader, writer = client
    writer.write(line)
    async with asyncio.timeout(SECONDS):
        return await reader.readline()


async def test_it_passes_on_what_it_hears(both, clients) -> None:
    echo, proxy = both
    one, two = await clients(proxy), await clients(proxy)
    assert await answer(one) == b"hello\n"
    assert await answer(two, b"x" * 50_000 + b"\n") == b"x" * 50_000 + b"\n"
    assert proxy.connections == proxy.accepted == 2
    one[1].close()
    await until(lambda: proxy.connections == 1)
    assert echo.ends == ["end"]


async def test_a_cut_ends_open_connections_on_both_sides_and_spares_later_ones(both, clients) -> None:
    echo, proxy = both
    client = await clients(proxy)
    await answer(client)
    proxy.cut()
    with suppress(ConnectionError):
        assert await answer(client) == b""
    await until(lambda: echo.ends)
    await until(lambda: proxy.connections == 0)
    assert await answer(await clients(proxy)) == b"hello\n"


async def test_a_cut_of_tcp_is_a_reset(folder, clients) -> None:
    async with echo_and_proxy("tcp", folder) as (echo, proxy):
        client = await clients(proxy)
        await answer(client)
        proxy.cut()
        with pytest.raises(ConnectionError):
            await client[0].readline()
        await until(lambda: echo.ends == ["reset"])


async def test_refused_is_who_comes_new(both, clients) -> None:
    _, proxy = both
    client = await clients(proxy)
    await answer(client)
    proxy.refuse()
    with pytest.raises(OSError):  # noqa: PT011 - refused, or no such socket
        await clients(proxy)
    assert await answer(client) == b"hello\n"
    await proxy.heal()
    assert await answer(await clients(proxy)) == b"hello\n"


async def test_the_port_is_nobody_elses_while_it_refuses(both) -> None:
    _, proxy = both
    if not proxy.endpoint.port:
        return  # a path is its own
    proxy.refuse()
    with socket.socket() as other, pytest.raises(OSError, match="in use"):
        other.bind((proxy.endpoint.host, proxy.endpoint.port))
    await proxy.heal()
    await proxy.close()
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((proxy.endpoint.host, proxy.endpoint.port))


async def test_frozen_nothing_passes_and_healed_all_of_it_does(both, clients) -> None:
    echo, proxy = both
    old = await clients(proxy)
    await answer(old)
    proxy.freeze()
    new = await clients(proxy)
    old[1].write(b"late\n")
    new[1].write(b"new\n")
    await until(lambda: proxy.accepted == 2)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):  # that nothing comes can only be seen by waiting
            await old[0].readline()
    assert echo.lines == [b"hello\n"]
    await proxy.heal()
    async with asyncio.timeout(SECONDS):
        assert await old[0].readline() == b"late\n"
        assert await new[0].readline() == b"new\n"


async def test_a_client_that_gives_up_on_a_frozen_server_is_noticed_when_it_heals(both, clients) -> None:
    echo, proxy = both
    client = await clients(proxy)
    await answer(client)
    proxy.freeze()
    client[1].write(b"too late\n")
    client[1].close()
    with suppress(OSError):
        await client[1].wait_closed()
    assert echo.ends == []
    await proxy.heal()
    await until(lambda: echo.ends)
    assert echo.lines[-1] == b"too late\n", "what was sent before it gave up arrives all the same"
    await until(lambda: proxy.connections == 0)


async def test_half_closed_toward_the_client_it_reads_the_end_and_is_still_heard(both, clients) -> None:
    echo, proxy = both
    client = await clients(proxy)
    await answer(client)
    proxy.half_close("client")
    assert await answer(client, b"still there\n") == b""
    await until(lambda: echo.lines[-1] == b"still there\n")
    assert echo.ends == []
    client[1].close()
    await until(lambda: echo.ends)
    await until(lambda: proxy.connections == 0)


async def test_half_closed_toward_the_server_it_reads_the_end(both, clients) -> None:
    echo, proxy = both
    client = await clients(proxy)
    await answer(client)
    proxy.half_close("server")
    await until(lambda: echo.ends == ["end"])
    with suppress(ConnectionError):
        assert await answer(client) == b""
    assert echo.lines == [b"hello\n"]


async def test_half_open_the_server_is_gone_and_the_client_is_told_nothing(both, clients) -> None:
    echo, proxy = both
    client = await clients(proxy)
    await answer(client)
    proxy.half_open()
    await until(lambda: echo.ends)
    client[1].write(b"into the void\n")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client[0].readline()
    assert echo.lines == [b"hello\n"]
    assert await answer(await clients(proxy)) == b"hello\n"
    client[1].close()
    await until(lambda: proxy.connections == 1)


async def test_delay_and_throttle_take_their_time(both, clients) -> None:
    _, proxy = both
    client = await clients(proxy)
    await answer(client)
    loop = asyncio.get_running_loop()
    proxy.delay(0.1)
    began = loop.time()
    await answer(client)
    assert loop.time() - began >= 0.2
    await proxy.heal()
    proxy.throttle(20_000)
    await answer(client)  # the pumps are in a read that began before
    began = loop.time()
    await answer(client, b"x" * 10_000 + b"\n")
    assert loop.time() - began >= 0.4
    await proxy.heal()
    assert await answer(client) == b"hello\n"


async def test_a_server_that_is_away_ends_the_client(folder, clients) -> None:
    async with FaultProxy(Endpoint(path=str(folder / "nobody"))) as proxy:
        client = await clients(proxy)
        with suppress(ConnectionError):
            assert await answer(client) == b""
        await until(lambda: proxy.connections == 0)


async def test_closing_frozen_leaves_nothing_behind(both, clients) -> None:
    _, proxy = both
    client = await clients(proxy)
    await answer(client)
    proxy.freeze()
    await clients(proxy)
    await until(lambda: proxy.accepted == 2)
    await proxy.close()
    assert proxy.connections == 0
    assert not proxy.endpoint.path or not Path(proxy.endpoint.path).exists()


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("redis://:word@example.org:7000/3", Endpoint(host="example.org", port=7000)),
        ("redis://example.org", Endpoint(host="example.org", port=6379)),
        ("unix://:word@/run/a%20b/valkey.sock", Endpoint(path="/run/a b/valkey.sock")),
        ("postgresql://user:word@[::1]/db", Endpoint(host="::1", port=5432)),
        ("postgresql://user@/db?host=/run/pg&port=5433", Endpoint(path="/run/pg/.s.PGSQL.5433")),
    ],
)
def test_addresses_are_found_in_urls(url: str, endpoint: Endpoint) -> None:
    assert Endpoint.of(url) == endpoint


def test_a_foreign_url_is_refused() -> None:
    with pytest.raises(ValueError, match="'amqp'"):
        Endpoint.of("amqp://example.org")


@pytest.mark.parametrize(
    ("url", "through"),
    [
        ("redis://:word@example.org:7000/3", "redis://:word@127.0.0.1:9/3"),
        (
            "postgresql://u:w@example.org/db?sslmode=disable",
            "postgresql://u:w@127.0.0.1:9/db?sslmode=disable",
        ),
    ],
)
def test_a_url_through_the_proxy_keeps_all_but_the_address(url: str, through: str) -> None:
    proxy = FaultProxy(Endpoint.of(url), Endpoint(host="127.0.0.1", port=9))
    assert proxy.through(url) == through


def test_a_socket_url_through_the_proxy_names_its_socket() -> None:
    dsn = "postgresql://u:w@/db?host=/run/pg&port=5433"
    proxy = FaultProxy.before(dsn, Path("/tmp/p"))
    assert proxy.through(dsn) == "postgresql://u:w@/db?host=%2Ftmp%2Fp&port=5433"
    assert Endpoint.of(proxy.through(dsn)) == proxy.endpoint
    url = "unix://:w@/run/v/valkey.sock?db=1"
    proxy = FaultProxy.before(url, Path("/tmp/p"))
    assert proxy.through(url) == "unix://:w@/tmp/p/valkey.sock?db=1"
