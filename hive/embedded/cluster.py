"""The embedded PostgreSQL's data folder: made all or nothing, checked before it is used.

A cluster is built in ``data.new`` and becomes ``data`` by one rename, so that a start cut short (a kill, a
full disk) leaves nothing the next one trips over. hive's role owns the database ``hive`` and is no superuser;
the superuser exists for single-user mode alone and cannot log in.
"""

import re
import shutil
import signal
from pathlib import Path

import anyio

from hive.embedded.folder import StoreFolder
from hive.embedded.privileges import Identity, launch_command
from hive.embedded.process import ServerProcess
from hive.errors import ConfigurationError, StoresMissing
from hive.logger import get_logger

log = get_logger(__name__)

PROGRAMS = frozenset({"postgres", "initdb"})
_MAJOR = "18"
_CREATE_SECONDS = 120.0
# Written at every start.
_ACCESS = "# Only hive's role, only by the socket, only with the password.\nlocal all hive scram-sha-256\n"
# The password is 256 random bits: more rounds protect no guess, and each costs every new connection time on
# hive's loop (10 ms for the usual 4096).
_SCRAM_ROUNDS = "1"
# The same order of texts on every machine, whatever locales it has.
_INITDB = (
    *("--username=postgres", "--auth=reject", "--no-sync", "--no-instructions"),
    *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
)


class Cluster:
    """``<folder>/data``, with the programs that make it and whom they run as."""

    def __init__(self, folder: StoreFolder, programs: Path, identity: Identity | None) -> None:
        self.data = folder.path / "data"
        self.log_path = folder.path / "server.log"
        self._fresh = folder.path / "data.new"
        self._folder = folder
        self._programs = programs
        self._identity = identity

    async def make_ready(self) -> None:
        """Leave a data folder that a server can be started on. Call it with the folder locked.

        Ends servers that a killed hive left, makes the cluster if there is none, and a new password if that
        was lost. Raises ConfigurationError (another PostgreSQL's data) or StoresMissing (full disk, broken
        folder).
        """
        await self._folder.end_leftovers(PROGRAMS, (self._folder.path, self.data, self._fresh))
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(self._fresh, ignore_errors=True))
        version = self.data / "PG_VERSION"
        if not self.data.exists():
            await self._create()
        elif not version.exists():
            raise StoresMissing(
                f"{self.data} is no PostgreSQL database: its file PG_VERSION is missing",
                remedy="restore it from a backup, or move it away to begin anew",
            )
        found = version.read_text("ascii", "replace").strip()
        if found != _MAJOR:
            raise ConfigurationError(
                f"{self.data} was made by PostgreSQL {found or '(unreadable)'}; this hive embeds {_MAJOR}",
                remedy="run the hive that made it, `hive backup`, and restore that into a new state folder",
            )
        if self._folder.password() is None:
            log.warning("embedded.password_lost", store="postgres")
            await self._single_user(self.data, f"alter role hive password '{self._folder.fresh_password()}'")
            self._folder.keep_password()
        (self.data / "pg_hba.conf").write_text(_ACCESS)
        # No process works in the data folder any more, so whatever the pid file says is past: its number may
        # be another process's by now, and a full disk may have cut it short.
        (self.data / "postmaster.pid").unlink(missing_ok=True)

    def launcher(self, program: Path, death_signal: str = "INT") -> list[str]:
        """What stands before a program's own command line."""
        shared = self._programs.parent / "share" / "postgresql" / "postgres.bki"
        return launch_command(
            self._identity,
            death_signal=death_signal,
            program=program,
            walks_to=(self._folder.path, shared),
        )

    def failure(self, process: ServerProcess, doing: str) -> StoresMissing:
        """What went wrong, in words, from what the process printed."""
        tail = process.log_tail()
        if re.search(r"No space left on device|Disk quota exceeded|wrote only \d+ of \d+ bytes", tail):
            return StoresMissing(
                f"the disk is full: the embedded PostgreSQL in {self._folder.path} failed while {doing}",
                remedy="make room there, or choose another folder with --state or HIVE_STATE_DIR",
            )
        lines = [
            line for line in tail.splitlines() if re.search(r"(FATAL|ERROR|PANIC|error):|setpriv:", line)
        ]
        cause = "; ".join(lines[-3:]) or tail[-300:] or process.exit
        return StoresMissing(
            f"the embedded PostgreSQL failed while {doing} ({process.exit}): {cause}",
            remedy=f"see {self.log_path}, or set HIVE_POSTGRES__DSN to a server of your own",
        )

    async def _create(self) -> None:
        log.info("embedded.creating", store="postgres", folder=str(self._folder.path))
        initdb = self._programs / "initdb"
        command = [*self.launcher(initdb, "KILL"), str(initdb), "-D", str(self._fresh), *_INITDB]
        process = ServerProcess.start(command, cwd=self._folder.path, log_path=self.log_path)
        await self._finish(process, "being created")
        password = self._folder.fresh_password()
        # In template1: every database made from it has the extension, which only a superuser may make.
        await self._single_user(
            self._fresh,
            f"create role hive login createdb password '{password}'",
            "grant pg_monitor to hive",
            "create schema hive_ext authorization hive",
            "create extension vector schema hive_ext",
            "create database hive owner hive",
        )
        # initdb was told not to sync file by file; one call for the whole file system takes a fraction of
        # that.
        with anyio.move_on_after(60):
            await anyio.run_process(["sync", "--file-system", str(self._fresh)], check=False)
        self._folder.keep_password()
        await anyio.Path(self._fresh).rename(self.data)

    async def _single_user(self, data: Path, *statements: str) -> None:
        """Run statements as superuser without a server. They come by a pipe: no password shows anywhere."""
        postgres = self._programs / "postgres"
        command = [*self.launcher(postgres), str(postgres), "--single", "-D", str(data)]
        command += [
            "-c",
            f"scram_iterations={_SCRAM_ROUNDS}",
            "-c",
            "log_min_error_statement=panic",
            "template1",
        ]
        text = "".join(f"{statement}\n" for statement in statements).encode()
        process = ServerProcess.start(command, cwd=self._folder.path, log_path=self.log_path, stdin=text)
        await self._finish(process, "being prepared")

    async def _finish(self, process: ServerProcess, doing: str) -> None:
        try:
            with anyio.fail_after(_CREATE_SECONDS):
                await process.wait()
        except TimeoutError:
            raise StoresMissing(f"the embedded PostgreSQL hung while {doing}") from None
        finally:
            await process.stop(((signal.SIGKILL, 5.0),))
        # Single-user mode ends with 0 even when a statement failed.
        if process.exit != "exit code 0" or re.search(r"\b(ERROR|FATAL|PANIC): ", process.log_tail()):
            raise self.failure(process, doing)
