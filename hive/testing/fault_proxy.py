"""A proxy in front of a server that misbehaves on request: the network's part in a test.

Put it between a client and Postgres, Redis or anything else that speaks over TCP or a Unix socket::

    async with FaultProxy.before(dsn, folder) as proxy:
        database = await Database.open(proxy.through(dsn), settings=settings)
        proxy.cut()  # every open connection is gone; new ones work

| fault | what the two sides see |
|---|---|
| ``cut`` | open connections are reset |
| ``refuse`` | new connections are refused, open ones go on |
| ``freeze`` | connections are accepted, and not a byte passes, not even an end; ``heal`` lets it all pass |
| ``half_close`` | one side reads the end of the stream and may go on to send; the other is told nothing |
| ``half_open`` | the server's side is closed, the client is told nothing: a reboot behind a firewall |
| ``delay`` | every piece of data comes so much later |
| ``throttle`` | so many bytes a second pass, each way and connection |

``heal`` ends every one of them, except for connections that are broken for good. Faults add up.
"""

import asyncio
import socket
import struct
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

PIECE_BYTES: Final = 64 * 1024
CONNECT_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 5.0
_DEFAULT_PORTS: Final = {"redis": 6379, "rediss": 6379, "postgresql": 5432, "postgres": 5432}
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a server listens: ``path`` of a Unix socket, else ``host`` and ``port``."""

    host: str = ""
    port: int = 0
    path: str = ""

    @classmethod
    def of(cls, url: str) -> "Endpoint":
        """The address inside ``redis://…``, ``unix://…`` or ``postgresql://…``; raises ValueError."""
        parts = urlsplit(url)
        if parts.scheme == "unix":
            return cls(path=unquote(parts.path))
        default = _DEFAULT_PORTS.get(parts.scheme)
        if default is None:
            raise ValueError(f"no address is known in a URL of scheme {parts.scheme!r}")
        query = dict(parse_qsl(parts.query))
        host = query.get("host") or parts.hostname or "127.0.0.1"
        port = int(query.get("port") or parts.port or default)
        if host.startswith("/"):
            return cls(path=f"{host}/.s.PGSQL.{port}")
        return cls(host=host, port=port)


class FaultProxy:
    """Passes on what it hears between its clients and ``target``, or does not.

    ``listen``: where, by default a free port of 127.0.0.1. Use it as a context, or ``start`` and ``close``.
    All of it belongs to one event loop. Faults are plain calls and work at once.
    """

    def __init__(self, target: Endpoint, listen: Endpoint | None = None) -> None:
        self.target = target
        self.endpoint = listen or Endpoint(host="127.0.0.1")
        self.accepted = 0
        """How many connections were accepted so far."""
        self._server: asyncio.Server | None = None
        self._port_kept: socket.socket | None = None
        self._closed = False
        self._links: set[_Link] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._delay_seconds = 0.0
        self._bytes_per_second = 0.0

    @classmethod
    def before(cls, url: str, folder: Path) -> "FaultProxy":
        """A proxy in front of the server that ``url`` names; ``folder`` is for its socket, if it needs one.

        A socket's path holds 107 bytes, so take a short folder.
        """
        target = Endpoint.of(url)
        listen = Endpoint(path=str(folder / Path(target.path).name)) if target.path else None
        return cls(target, listen)

    def through(self, url: str) -> str:
        """``url`` with this proxy's address in place of the server's; started proxies only."""
        parts = urlsplit(url)
        user, at, _ = parts.netloc.rpartition("@")
        here = self.endpoint
        if parts.scheme == "unix":
            return urlunsplit(parts._replace(path=quote(here.path)))
        query = {key: value for key, value in parse_qsl(parts.query) if key not in ("host", "port")}
        if here.path:
            folder, _, port = here.path.rpartition("/.s.PGSQL.")
            query |= {"host": folder, "port": port}
            netloc = user + at
        else:
            netloc = f"{user}{at}{here.host}:{here.port}"
        return urlunsplit(parts._replace(netloc=netloc, query=urlencode(query)))

    @property
    def connections(self) -> int:
        """How many connections are open, half-open ones included."""
        return len(self._links)

    # -- life -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen. A port that was left open to choice is fixed by this, and kept over ``refuse``."""
        self._closed = False
        if self._server is not None:
            return
        if self.endpoint.path:
            self._server = await asyncio.start_unix_server(self._serve, self.endpoint.path)
            return
        self._server = await asyncio.start_server(self._serve, self.endpoint.host, self.endpoint.port)
        port: int = self._server.sockets[0].getsockname()[1]
        self.endpoint = Endpoint(host=self.endpoint.host, port=port)
        self._release_port()

    async def close(self) -> None:
        """Stop listening and end every connection. Takes at most 5 s."""
        self._closed = True
        self.refuse()
        self._release_port()
        self._flowing.set()
        self.cut()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._empty.wait()
        self._remove_socket()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # -- faults ---------------------------------------------------------------------------------------------

    def cut(self) -> None:
        """Reset every open connection, on both sides."""
        for link in list(self._links):
            link.abort()

    def refuse(self) -> None:
        """Take no new connections, as if nobody listened."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            self._keep_port()

    def freeze(self) -> None:
        """Let nothing pass. What is sent meanwhile is kept (by the kernel, beyond its buffers not at all)."""
        self._flowing.clear()

    def half_close(self, toward: Literal["client", "server"]) -> None:
        """End the stream toward one side of every open connection; what that side sends still arrives."""
        for link in list(self._links):
            link.end_toward(toward)

    def half_open(self) -> None:
        """Close the server's side of every open connection and tell the client nothing, now or ever."""
        for link in list(self._links):
            link.strand()

    def delay(self, seconds: float) -> None:
        """Hold up each piece of data for so long; an answer thus takes twice that."""
        self._delay_seconds = seconds

    def throttle(self, bytes_per_second: float) -> None:
        """Let so many bytes a second pass, in each direction of each connection. 0: as many as will."""
        self._bytes_per_second = bytes_per_second

    async def heal(self) -> None:
        """End all faults. Connections that were cut or half-closed stay so."""
        self._delay_seconds = 0.0
        self._bytes_per_second = 0.0
        self._flowing.set()
        await self.start()

    def _keep_port(self) -> None:
        """Hold the port without listening: else the kernel may give it to a connection made meanwhile."""
        if self.endpoint.path:
            return
        family = socket.AF_INET6 if ":" in self.endpoint.host else socket.AF_INET
        self._port_kept = socket.socket(family)
        self._port_kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._port_kept.bind((self.endpoint.host, self.endpoint.port))

    def _release_port(self) -> None:
        held, self._port_kept = self._port_kept, None
        if held is not None:
            held.close()

    def _remove_socket(self) -> None:
        if self.endpoint.path:
            Path(self.endpoint.path).unlink(missing_ok=True)

    # -- the work -------------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        if self._closed:  # it was accepted in the same turn
            link.abort()
            return
        self.accepted += 1
        self._links.add(link)
        self._empty.clear()
        try:
            await self._flowing.wait()
            if link.aborted:
                return
            async with asyncio.timeout(CONNECT_SECONDS):
                server_reader, link.server = await _connect(self.target)
            if link.aborted:
                return
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pump(link, reader, "server"))
                group.create_task(self._pump(link, server_reader, "client"))
        except* (OSError, TimeoutError):
            pass  # the target is away, or one side is: either way this connection is over
        finally:
            link.abort()
            self._links.discard(link)
            if not self._links:
                self._empty.set()

    async def _pump(self, link: "_Link", reader: asyncio.StreamReader, toward: "_Side") -> None:
        """One direction, until its end; then the end is passed on as well."""
        while True:
            rate = self._bytes_per_second
            data = await reader.read(max(1, min(PIECE_BYTES, int(rate / 10))) if rate else PIECE_BYTES)
            await self._flowing.wait()
            if self._delay_seconds:
                await asyncio.sleep(self._delay_seconds)
                await self._flowing.wait()
            if not data:
                break
            if toward not in link.ended:
                await link.send(toward, data)
            if rate:
                await asyncio.sleep(len(data) / rate)
        if link.stranded:
            if toward == "server":
                link.abort()  # the client gave up by itself
            await link.over.wait()
        link.end_toward(toward)


_Side = Literal["client", "server"]


class _Link:
    """One client's connection and the one to the server that belongs to it."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.ended: set[_Side] = set()
        self.stranded = False
        self.aborted = False
        self.over = asyncio.Event()

    async def send(self, toward: _Side, data: bytes) -> None:
        writer = self.client if toward == "client" else self.server
        assert writer is not None
        writer.write(data)
        await writer.drain()

    def end_toward(self, toward: _Side) -> None:
        """Say "no more" to one side, once."""
        writer = self.client if toward == "client" else self.server
        if toward in self.ended or writer is None:
            return
        self.ended.add(toward)
        with suppress(OSError):
            writer.write_eof()

    def strand(self) -> None:
        """Close the server's side; the client's stays open, and mute."""
        self.stranded = True
        self.ended |= {"client", "server"}
        if self.server is not None:
            self.server.transport.abort()

    def abort(self) -> None:
        self.aborted = True
        self.over.set()
        for writer in (self.client, self.server):
            if writer is None:
                continue
            raw = writer.get_extra_info("socket")
            with suppress(OSError):  # a Unix socket knows no reset
                if raw is not None and raw.family != socket.AF_UNIX:
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            writer.transport.abort()


def _connect(target: Endpoint) -> Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    if target.path:
        return asyncio.open_unix_connection(target.path)
    return asyncio.open_connection(target.host, target.port)
