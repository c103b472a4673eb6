"""The same HTTP API without a hive, served by this very command on a free port of the loopback while it runs.

Access, checks and JSON are the same as ever. Only durable jobs are seen this way; what was given up on a
stream queue is shown while hive runs.
"""

import asyncio
import secrets
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from aiohttp import web

from hive.config_file import load
from hive.store.postgres import Database
from supervisor.cli.api import Api
from supervisor.cli.database import NoDatabase, direct_dsn
from supervisor.cli.failure import CommandFailed, NotRunning, hive_errors
from supervisor.cli.offline_backend import backend_over
from supervisor.cli.place import Place
from supervisor.http.application import build

START_SECONDS = 60.0


@contextmanager
def served_here(place: Place, absent: NotRunning) -> Generator[Api]:
    """Serve the API from a thread until the body ends; raises ``absent`` if there is no database either."""
    serving = _Serving(place)
    thread = threading.Thread(target=serving.run, name="offline")
    thread.start()
    try:
        serving.ready.wait(START_SECONDS)
        if serving.failure is not None:
            raise absent if isinstance(serving.failure, NoDatabase) else serving.failure
        if serving.port is None:
            raise absent
        yield Api(replace(place, port=serving.port), token=serving.token)
    finally:
        serving.stop()
        thread.join(START_SECONDS)


@dataclass
class _Serving:
    """The serving thread, and what it tells the waiting one."""

    place: Place
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    ready: threading.Event = field(default_factory=threading.Event)
    port: int | None = None
    failure: CommandFailed | None = None
    loop: asyncio.AbstractEventLoop | None = None
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def run(self) -> None:
        try:
            with hive_errors():
                asyncio.run(self._serve())
        except CommandFailed as failure:
            self.failure = failure
        finally:
            self.ready.set()

    def stop(self) -> None:
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.ending.set)

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        settings = load(self.place.config, overrides=self.place.overrides())
        async with direct_dsn(self.place) as dsn:
            database = await Database.open(dsn, settings=settings.postgres)
            runner: web.AppRunner | None = None
            try:
                application = build(backend_over(database, settings, self.place), token=self.token)
                runner = web.AppRunner(application, access_log=None, shutdown_timeout=1)
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                self.port = runner.addresses[0][1]
                self.ready.set()
                await self.ending.wait()
            finally:
                if runner is not None:
                    await runner.cleanup()
                await database.close()
