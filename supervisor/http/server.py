"""The listening socket: bound before anything else starts, so that a port in use is a configuration error."""

import asyncio
import errno
import json
import os
import socket
from pathlib import Path

from aiohttp import web

from hive.errors import ConfigurationError
from hive.logger import get_logger
from hive.settings import Http
from supervisor.http.private_file import write_private

log = get_logger(__name__)

PLACE_FILE = "http.json"


class HttpServer:
    """Serves one application. ``start()`` binds, ``run()`` is the service, ``stop()`` ends it."""

    def __init__(self, application: web.Application, settings: Http, state_dir: Path) -> None:
        self._application = application
        self._settings = settings
        self._place = state_dir / PLACE_FILE
        self._runner: web.AppRunner | None = None
        self.port = settings.port

    async def start(self) -> None:
        """Bind and serve. Raises ConfigurationError (exit code 2) when the address cannot be had."""
        if self._runner is not None:
            return
        host, port = self._settings.host, self._settings.port
        try:
            listening = socket.create_server(
                (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=256
            )
        except OSError as error:
            raise _explain(error, host, port) from error
        self.port = int(listening.getsockname()[1])
        # Handlers have deadlines of their own; what still runs at stop gets three seconds.
        runner = web.AppRunner(self._application, handle_signals=False, access_log=None, shutdown_timeout=3)
        try:
            await runner.setup()
            await web.SockSite(runner, listening).start()
            self._announce(host)
        except BaseException:
            listening.close()
            await asyncio.shield(runner.cleanup())
            raise
        self._runner = runner
        log.info("http.listening", host=host, port=self.port)

    async def run(self) -> None:
        """Serve until cancelled, and then stop. Binds again if it was stopped."""
        await self.start()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.shield(self.stop())

    async def stop(self) -> None:
        """Close the socket, give running requests three seconds, remove ``http.json``. Safe to repeat."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        self._retract()
        async with asyncio.timeout(10):
            await runner.cleanup()

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
