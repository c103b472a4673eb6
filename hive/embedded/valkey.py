"""The embedded Valkey: started with hive, ended with it. Its log of writes keeps its data, to the second."""

import signal
from asyncio import open_unix_connection
from pathlib import Path
from urllib.parse import quote

import anyio

from hive.embedded.binaries import valkey_program
from hive.embedded.privileges import Identity, launch_command
from hive.embedded.process import ServerProcess
from hive.embedded.server import EmbeddedServer
from hive.errors import StoresMissing
from hive.logger import get_logger
from hive.settings import Embedded

log = get_logger(__name__)

_START_SECONDS = 120.0  # the log of writes is read first
_PROGRAMS = frozenset({"valkey-server"})
_LOG_FOLDER = "appendonlydir"

# Its working directory is its folder: every path is relative, and needs no right to walk there. It comes by a
# pipe: the password shows neither on a command line nor in a second file.
_CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
requirepass {password}
dir ./
appendonly yes
appendfsync everysec
aof-load-truncated yes
save ""
maxmemory {megabytes}mb
maxmemory-policy noeviction
databases 16
daemonize no
logfile ""
loglevel notice
always-show-logo no
tcp-keepalive 60
"""


class EmbeddedValkey(EmbeddedServer):
    """A Valkey 9. The folder's lock matters: a second server would silently take the socket over."""

    store = "valkey"
    title = "Valkey"
    stop_steps = ((signal.SIGTERM, 10.0), (signal.SIGKILL, 5.0))  # the first syncs the log of writes

    def __init__(self, state_dir: Path, settings: Embedded, *, program: Path | None = None) -> None:
        super().__init__(state_dir, settings)
        self._program = program
        self._log_path = self._folder.path / "server.log"

    @property
    def url(self) -> str:
        """The address as a URL."""
        return f"unix://:{quote(self._password())}@{quote(str(self._socket))}"

    @property
    def address(self) -> str:
        return self.url

    def _find(self) -> Path:
        return self._program or valkey_program()

    @property
    def _socket(self) -> Path:
        return self._folder.socket_folder() / "valkey.sock"

    async def _launch(self, programs: Path, identity: Identity | None) -> None:
        await self._folder.end_leftovers(_PROGRAMS, (self._folder.path,))
        if self._folder.password() is None:
            self._folder.new_password()
        try:
            await self._launch_once(programs, identity)
        except StoresMissing:
            broken = self._folder.path / _LOG_FOLDER
            process = self._process
            if process is None or "Bad file format reading the append only file" not in process.log_tail():
                raise
            # Nothing in Redis is irreplaceable (a job is a Postgres row), so a damaged log is no reason to
            # stay down.
            kept = self._folder.path / f"{_LOG_FOLDER}.broken"
            log.error("embedded.log_broken", store="valkey", moved_to=str(kept))
            await self._folder.replace_tree(broken, kept)
            await self._launch_once(programs, identity)

    async def _launch_once(self, program: Path, identity: Identity | None) -> None:
        password = self._password()
        self._folder.make_socket_folder(identity)
        socket = self._socket
        inside = socket.is_relative_to(self._folder.path)
        configuration = _CONFIGURATION.format(
            socket=socket.relative_to(self._folder.path) if inside else socket,
            password=password,
            megabytes=self._settings.valkey_max_memory_mb,
        )
        launcher = launch_command(identity, death_signal="TERM", program=program, walks_to=())
        process = ServerProcess.start(
            [*launcher, str(program), "-"],
            cwd=self._folder.path,
            log_path=self._log_path,
            stdin=configuration.encode(),
        )
        self._process = process
        with anyio.move_on_after(_START_SECONDS):
            while not process.ended:
                if await _answers(self._socket, password):
                    log.info("embedded.started", store="valkey", pid=process.pid)
                    return
                await anyio.sleep(0.01)
        tail = process.log_tail()
        if "No space left on device" in tail or "Disk quota exceeded" in tail:
            raise StoresMissing(
                f"the disk is full: the embedded Valkey in {self._folder.path} does not start",
                remedy="make room there, or choose another folder with --state or HIVE_STATE_DIR",
            )
        raise StoresMissing(
            f"the embedded Valkey failed while starting ({process.exit}): {tail[-300:]}",
            remedy=f"see {self._log_path}, or set HIVE_REDIS__URL to a server of your own",
        )


async def _answers(socket: Path, password: str) -> bool:
    """Whether the server is there and has read its data; while it reads, it answers -LOADING."""
    try:
        with anyio.fail_after(2):
            reader, writer = await open_unix_connection(str(socket))
            try:
                writer.write(f"AUTH {password}\r\nPING\r\n".encode())
                await reader.readline()
                return await reader.readline() == b"+PONG\r\n"
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
