"""The embedded PostgreSQL: made once, started with hive, ended with it."""

import signal
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import anyio

from hive.embedded.binaries import postgres_programs
from hive.embedded.cluster import Cluster
from hive.embedded.folder import StoreFolder
from hive.embedded.privileges import server_identity
from hive.embedded.process import ServerProcess
from hive.errors import StoreDown, StoresMissing
from hive.logger import get_logger
from hive.settings import Embedded

log = get_logger(__name__)

_PORT = 5432  # only a part of the socket's name
_STOP = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))
# Recovery after a crash replays max_wal_size of log at the most; a slow disk may need minutes for it.
_START_SECONDS = 300.0

# On the command line and not in postgresql.conf, so that a newer hive's settings hold for an older folder.
# None of it is secret.
_OPTIONS: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "recovery_init_sync_method": "syncfs",
    "max_connections": "64",
    "max_locks_per_transaction": "256",  # a transaction over many tenants' schemas holds many
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_logical_replication_workers": "0",
    "max_wal_size": "512MB",
    "io_method": "sync",  # the default keeps three processes more
    "jit": "off",
    "max_parallel_workers_per_gather": "0",  # workers share memory through /dev/shm: 64 MB in a container
    "max_parallel_maintenance_workers": "0",
    "autovacuum_naptime": "15s",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "log",  # a failed statement is its sender's to report, and its text is a tenant's
    "log_min_error_statement": "panic",
    "log_checkpoints": "off",
}


class EmbeddedPostgres:
    """A PostgreSQL 18 with pgvector under ``state_dir``. A second hive on the folder gets ``Conflict``.

    ``options`` are more server settings (tests switch fsync off). ``programs``: the folder of its binaries,
    by default the wheel's.
    """

    def __init__(
        self,
        state_dir: Path,
        settings: Embedded,
        *,
        options: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        buffers = {"shared_buffers": f"{settings.postgres_shared_buffers_mb}MB"}
        self._settings = settings
        self._options = {**_OPTIONS, **buffers, **(options or {})}
        self._programs = programs
        self._folder = StoreFolder(state_dir, "postgres")
        self._process: ServerProcess | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The postmaster's process, while it runs."""
        return None if self._process is None or self._process.ended else self._process.pid

    @property
    def exists(self) -> bool:
        """Whether a database was made here before."""
        return (self._folder.path / "data" / "PG_VERSION").exists()

    @property
    def dsn(self) -> str:
        """The address, password included. Also answers while another process runs the server.

        Raises StoresMissing when no database was made here yet.
        """
        password = self._folder.password()
        if password is None:
            raise StoresMissing(
                f"there is no embedded PostgreSQL in {self._folder.path} yet", remedy="start hive once"
            )
        host = quote(str(self._folder.socket_folder()))
        return f"postgresql://hive:{quote(password)}@/hive?host={host}&port={_PORT}"

    async def start(self) -> str:
        """Make the database if there is none, start the server, wait until it answers; returns the DSN.

        Does nothing if it runs already. Raises ConfigurationError (not installed, no user to run as),
        Conflict (another hive's folder) or StoresMissing (it does not start: the disk is full, say).
        Cancelled, it leaves no server behind. Call it on the main thread: the server dies with the thread
        that started it.
        """
        if self.pid is not None:
            return self.dsn
        self._stopping = False
        programs = self._programs or postgres_programs()
        identity = server_identity(self._settings.user)
        self._folder.lock()
        started = False
        try:
            self._folder.prepare(identity)
            cluster = Cluster(self._folder, programs, identity)
            await cluster.make_ready()
            await self._launch(cluster, programs / "postgres", self._folder.make_socket_folder(identity))
            started = True
        except OSError as error:
            raise StoresMissing(f"{self._folder.path}: {error.strerror or error}") from error
        finally:
            if not started:
                await self._end()
        return self.dsn

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
            log.error("embedded.died", store="postgres", exit=process.exit, tail=process.log_tail()[-500:])
            raise StoreDown("embedded PostgreSQL", "running", f"it ended with {process.exit}")

    async def stop(self) -> None:
        """Shut the server down (open transactions are rolled back) and let the folder go. At most 30 s."""
        self._stopping = True
        await self._end()

    async def _end(self) -> None:
        if self._process is not None:
            await self._process.stop(_STOP)
            self._process = None
        if self._folder.locked:
            self._folder.remove_socket_folder()
            self._folder.unlock()

    async def _launch(self, cluster: Cluster, program: Path, socket_folder: Path) -> None:
        command = [*cluster.launcher(program), str(program), "-D", str(cluster.data)]
        command += ["-k", str(socket_folder), "-p", str(_PORT)]
        for name, value in self._options.items():
            command += ["-c", f"{name}={value}"]
        process = ServerProcess.start(command, cwd=self._folder.path, log_path=cluster.log_path)
        self._process = process
        with anyio.move_on_after(_START_SECONDS):
            while not process.ended:
                if _ready(cluster.data / "postmaster.pid", process.pid):
                    log.info("embedded.started", store="postgres", pid=process.pid)
                    return
                await anyio.sleep(0.01)
        raise cluster.failure(process, "starting")


def _ready(pid_file: Path, pid: int) -> bool:
    """Whether *our* server takes connections. ``pg_isready`` would also answer for somebody else's."""
    try:
        lines = pid_file.read_text("ascii", "replace").splitlines()
    except FileNotFoundError:
        return False
    return len(lines) >= 8 and lines[0].strip() == str(pid) and lines[7].strip() == "ready"
