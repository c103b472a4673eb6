"""The listening socket: bound before anything else starts, so that a port in use is a configuration error.

Binding and serving are two steps. aiohttp and the models of the API take a quarter of a start to load, and no
message needs them: they come once pools consume. Who connects before that waits in the socket's queue.
"""

import asyncio
import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from hive.errors import ConfigurationError
from hive.logger import get_logger
from hive.settings import Http
from supervisor.http.private_file import write_private

if TYPE_CHECKING:
    from aiohttp import web

log = get_logger(__name__)

PLACE_FILE = "http.json"


class HttpServer:
    """Serves one application. ``bind()`` takes the port, ``run()`` is the service, ``stop()`` ends it.

    ``make`` gives the application, at each start. It is called in a thread, so that it may import what it
    needs while the loop goes on.
    """

    def __init__(self, make: "Callable[[], web.Application]", settings: Http, state_dir: Path) -> None:
        self._make = make
        self._settings = settings
        self._place = state_dir / PLACE_FILE
        self._listening: socket.socket | None = None
        self._runner: web.AppRunner | None = None
        self._serving = anyio.Event()
        self.port = settings.port

    def bind(self) -> None:
        """Take the port and say where it is; nobody is answered yet.

        Raises ConfigurationError (exit code 2) when the address cannot be had.
        """
        if self._listening is not None:
            return
        host, port = self._settings.host, self._settings.port
        try:
            listening = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
            )
        except OSError as error:
            raise _explain(error, host, port) from error
        self.port = int(listening.getsockname()[1])
        try:
            self._announce(host)
        except BaseException:
            listening.close()
            raise
        self._listening = listening

    async def start(self) -> None:
        """Answer requests. Raises as ``bind`` does, where that was not called before."""
        if self._runner is not None:
            return
        self.bind()
        assert self._listening is not None
        try:
            application = await anyio.to_thread.run_sync(self._make)
            from aiohttp import web  # loaded by now: the application is made of it

            # Handlers have deadlines of their own; what still runs at stop gets three seconds.
            self._runner = web.AppRunner(
                application, handle_signals=False, access_log=None, shutdown_timeout=3
            )
            await self._runner.setup()
            await web.SockSite(self._runner, self._listening).start()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.stop()
            raise
        self._serving.set()
        log.info("http.listening", host=self._settings.host, port=self.port)

    async def serving(self) -> None:
        """Return once requests are answered."""
        await self._serving.wait()

    async def run(self) -> None:
        """Serve until cancelled, and return once it has stopped. Binds again if it was stopped."""
        await self.start()
        try:
            await anyio.sleep_forever()
        finally:
            # Not asyncio's shield: the tree's scope cancels again and again, and would leave `stop` behind.
            with anyio.CancelScope(shield=True):
                await self.stop()

    async def stop(self) -> None:
        """Close the socket, give running requests three seconds, remove ``http.json``. Safe to repeat."""
        runner, self._runner = self._runner, None
        listening, self._listening = self._listening, None
        if listening is None:
            return
        self._retract()
        if runner is not None:
            async with asyncio.timeout(10):
                await runner.cleanup()
        listening.close()

    def _announce(self, host: str) -> None:
        """Tell this host's command line where to find us."""
        write_private(self._place, json.dumps({"host": host, "port": self.port, "pid": os.getpid()}) + "\n")

    def _retract(self) -> None:
        try:
            if json.loads(self._place.read_text("ascii")).get("pid") == os.getpid():
                self._place.unlink()
        except (OSError, ValueError):
            pass  # gone already, or never whole: nothing of ours to remove


def _explain(error: OSError, host: str, port: int) -> ConfigurationError:
    match error.errno:
        case errno.EADDRINUSE:
            return ConfigurationError(
                f"port {port} on {host} is in use",
                remedy="stop what listens there, or choose another with --port or HIVE_HTTP__PORT",
            )
        case errno.EACCES:
            return ConfigurationError(
                f"port {port} may not be opened by this user",
                remedy="choose one above 1023 with --port or HIVE_HTTP__PORT",
            )
        case errno.EADDRNOTAVAIL:
            return ConfigurationError(
                f"http.host: {host!r} is no address of this machine", remedy="set HIVE_HTTP__HOST"
            )
        case _:
            return ConfigurationError(
                f"cannot listen on {host!r} port {port}: {error.strerror or error}",
                remedy="set HIVE_HTTP__HOST",
            )
