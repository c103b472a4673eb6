"""What the embedded stores share: one server of one hive on one folder, from its start to its stop."""

import signal
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from hive.embedded.folder import StoreFolder
from hive.embedded.privileges import Identity, server_identity
from hive.embedded.process import ServerProcess
from hive.errors import StoreDown, StoresMissing
from hive.logger import get_logger
from hive.settings import Embedded

log = get_logger(__name__)


class EmbeddedServer(ABC):
    """A server under ``state_dir``. One at a time: a second hive there gets ``Conflict``."""

    store: ClassVar[str]
    """The folder's name, and the store's in events."""
    title: ClassVar[str]
    """The store's name for people."""
    stop_steps: ClassVar[Sequence[tuple[signal.Signals, float]]]
    """The signals that end it, each with the seconds it is given."""

    def __init__(self, state_dir: Path, settings: Embedded) -> None:
        self._settings = settings
        self._folder = StoreFolder(state_dir, self.store)
        self._process: ServerProcess | None = None
        self._stopping = False

    @property
    @abstractmethod
    def address(self) -> str:
        """Where clients reach it, password included. Also answers while another process runs the server.

        Raises StoresMissing when it never ran here.
        """

    @abstractmethod
    def _find(self) -> Path:
        """The programs; raises ConfigurationError if they are not installed."""

    @abstractmethod
    async def _launch(self, programs: Path, identity: Identity | None) -> None:
        """In the locked folder: end what a killed hive left, prepare the data, set ``_process``, and return
        when the server answers. Raises ConfigurationError or StoresMissing."""

    @property
    def pid(self) -> int | None:
        """The server's process, while it runs."""
        return None if self._process is None or self._process.ended else self._process.pid

    async def start(self) -> str:
        """Prepare the data, start the server and wait until it answers; returns the address.

        Does nothing if it runs already. Raises ConfigurationError (not installed, no user to run as),
        Conflict (another hive's folder) or StoresMissing (it does not start: the disk is full, say).
        Cancelled, it leaves no server behind. Call it on the main thread: the server dies with the thread
        that started it.
        """
        if self.pid is not None:
            return self.address
        self._stopping = False
        programs = self._find()
        identity = server_identity(self._settings.user)
        self._folder.lock()
        started = False
        try:
            self._folder.prepare(identity)
            await self._launch(programs, identity)
            started = True
        except OSError as error:
            raise StoresMissing(f"{self._folder.path} cannot be used: {error.strerror or error}") from error
        finally:
            if not started:
                await self._end()
        return self.address

    async def run(self) -> None:
        """The service: start the server if it does not run, then wait.

        Raises StoreDown when it ends by itself, so that the service tree starts it again; returns after
        ``stop()``. Cancelled, it leaves the server running: the stores outlive whoever still writes to them.
        """
        await self.start()
        process = self._process
        assert process is not None
        await process.wait()
        if not self._stopping:
            log.error("embedded.died", store=self.store, exit=process.exit, tail=process.log_tail()[-500:])
            raise StoreDown(f"embedded {self.title}", "running", f"it ended with {process.exit}")

    async def stop(self) -> None:
        """Shut the server down, its data safe, and let the folder go. Takes no longer than ``stop_steps``."""
        self._stopping = True
        await self._end()

    def _password(self) -> str:
        password = self._folder.password()
        if password is None:
            raise StoresMissing(
                f"there is no embedded {self.title} in {self._folder.path} yet", remedy="start hive once"
            )
        return password

    async def _end(self) -> None:
        if self._process is not None:
            await self._process.stop(self.stop_steps)
            self._process = None
        if self._folder.locked:
            self._folder.remove_socket_folder()
            self._folder.unlock()
