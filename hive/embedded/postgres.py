"""The embedded PostgreSQL: made once, started with hive, ended with it."""

import signal
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import anyio

from hive.embedded.binaries import postgres_programs
from hive.embedded.cluster import Cluster
from hive.embedded.privileges import Identity
from hive.embedded.process import ServerProcess
from hive.embedded.server import EmbeddedServer
from hive.logger import get_logger
from hive.settings import Embedded

log = get_logger(__name__)

_PORT = 5432  # only a part of the socket's name
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
    # Bounds what a kill of the whole container forgets of commits that do not wait (a claim's). 10ms was
    # tried: a tenth more of the server's CPU at 400 messages a second, and 0.04 % of a core at rest.
    "wal_writer_delay": "50ms",
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


class EmbeddedPostgres(EmbeddedServer):
    """A PostgreSQL 18 with pgvector.

    ``options`` are more server settings (tests switch fsync off). ``programs``: the folder of its binaries,
    by default the wheel's.
    """

    store = "postgres"
    title = "PostgreSQL"
    # Open transactions are rolled back; then without a checkpoint; then as it is.
    stop_steps = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))

    def __init__(
        self,
        state_dir: Path,
        settings: Embedded,
        *,
        options: Mapping[str, str] | None = None,
        programs: Path | None = None,
    ) -> None:
        super().__init__(state_dir, settings)
        buffers = {"shared_buffers": f"{settings.postgres_shared_buffers_mb}MB"}
        self._options = {**_OPTIONS, **buffers, **(options or {})}
        self._programs = programs

    @property
    def exists(self) -> bool:
        """Whether a database was made here before."""
        return (self._folder.path / "data" / "PG_VERSION").exists()

    @property
    def dsn(self) -> str:
        """The address as a DSN of the database ``hive``."""
        password = quote(self._password())
        host = quote(str(self._folder.socket_folder()))
        return f"postgresql://hive:{password}@/hive?host={host}&port={_PORT}"

    @property
    def address(self) -> str:
        return self.dsn

    def _find(self) -> Path:
        return self._programs or postgres_programs()

    async def _launch(self, programs: Path, identity: Identity | None) -> None:
        cluster = Cluster(self._folder, programs, identity)
        await cluster.make_ready()
        program = programs / "postgres"
        socket_folder = self._folder.make_socket_folder(identity)
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
