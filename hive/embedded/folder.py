"""A store's place under the state folder: its lock, owner and password, and what a killed hive left there."""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import anyio

from hive.embedded.privileges import Identity
from hive.errors import ConfigurationError, Conflict, StoresMissing
from hive.logger import get_logger

log = get_logger(__name__)

# A Unix socket's path holds 107 bytes; the longest name below the folder is ".s.PGSQL.5432.lock".
_MAX_SOCKET_FOLDER = 80
# PostgreSQL reads its socket folders as a comma-separated list, Valkey its configuration as words.
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")


class StoreFolder:
    """``<state>/<name>/`` for the server's user, ``<state>/<name>.lock`` and ``.password`` for hive's."""

    def __init__(self, state_dir: Path, name: str) -> None:
        self.state_dir = state_dir.absolute()
        self.name = name
        self.path = self.state_dir / name
        self.password_path = self.state_dir / f"{name}.password"
        self._lock_path = self.state_dir / f"{name}.lock"
        self._lock: int | None = None

    def lock(self) -> None:
        """Make the folder this process's alone; raises Conflict when another one has it. May be called again.

        The kernel frees the lock at a process's death, however it dies; the descriptor is not inherited.
        """
        if self._lock is not None:
            return
        try:
            self.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self.state_dir, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
            os.close(descriptor)
            if not isinstance(error, BlockingIOError):
                raise _unusable(self._lock_path, error) from error
            raise Conflict(
                f"{self.path} is in use by another hive" + (f" (process {holder})" if holder else ""),
                remedy="stop that one, or choose another folder with --state or HIVE_STATE_DIR",
            ) from None
        with suppress(OSError):  # the number is only for the message above
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        self._lock = descriptor

    def unlock(self) -> None:
        """Let another process have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    @property
    def locked(self) -> bool:
        return self._lock is not None

    def prepare(self, identity: Identity | None) -> None:
        """Make the folder, owned by the server's user, with mode 0700. Parents are left as they are."""
        owner = os.geteuid() if identity is None else identity.uid
        group = os.getegid() if identity is None else identity.gid
        try:
            self.path.mkdir(mode=0o700, exist_ok=True)
            found = self.path.stat().st_uid
            if found != owner:
                if os.geteuid() != 0:
                    raise ConfigurationError(
                        f"{self.path} belongs to user {found}, and hive runs as {owner}",
                        remedy=f"run hive as that user, or: chown -R {owner} {self.state_dir}",
                    )
                # From the leaves up, so that a change cut short is seen as one and done again.
                for folder, _, files in os.walk(self.path, topdown=False):
                    for file in files:
                        os.lchown(os.path.join(folder, file), owner, group)
                    os.lchown(folder, owner, group)
            self.path.chmod(0o700)
        except OSError as error:
            raise _unusable(self.path, error) from error

    def socket_folder(self) -> Path:
        """Where the server's socket goes: inside the folder, or a short and plain path of our own."""
        inside = self.path / "run"
        if len(os.fsencode(inside)) <= _MAX_SOCKET_FOLDER and _PLAIN.fullmatch(str(inside)):
            return inside
        digest = hashlib.sha256(os.fsencode(self.path)).hexdigest()[:16]
        return Path("/tmp") / f"hive-{os.geteuid()}-{digest}"

    def make_socket_folder(self, identity: Identity | None) -> Path:
        """Make the socket's folder, emptied of what an earlier server left; refuse somebody else's."""
        folder = self.socket_folder()
        owner = os.geteuid() if identity is None else identity.uid
        group = os.getegid() if identity is None else identity.gid
        try:
            with suppress(FileExistsError):
                folder.mkdir(mode=0o700)
            status = folder.lstat()
            if folder.is_symlink() or not folder.is_dir() or status.st_uid not in {owner, os.geteuid()}:
                raise ConfigurationError(
                    f"{folder}, for the socket of the embedded {self.name}, was made by somebody else",
                    remedy="remove it, or choose a state folder with a short and plain path",
                )
            os.chown(folder, owner, group, follow_symlinks=False)
            folder.chmod(0o700)
            for file in folder.iterdir():
                file.unlink()
        except OSError as error:
            raise _unusable(folder, error) from error
        return folder

    def remove_socket_folder(self) -> None:
        """Remove the socket's folder, if it lies outside the state folder."""
        folder = self.socket_folder()
        if folder.parent != self.path:
            shutil.rmtree(folder, ignore_errors=True)

    async def replace_tree(self, old: Path, new: Path) -> None:
        """Move a folder aside, over what was moved there before."""

        def replace() -> None:
            shutil.rmtree(new, ignore_errors=True)
            old.rename(new)

        await anyio.to_thread.run_sync(replace)

    def password(self) -> str | None:
        """The password of the server's only role, if one was made."""
        try:
            return self.password_path.read_text("ascii", "replace").strip() or None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unusable(self.password_path, error) from error

    def new_password(self) -> str:
        """Make a password and keep it."""
        password = self.fresh_password()
        self.keep_password()
        return password

    def fresh_password(self) -> str:
        """Make a password that is not valid before ``keep_password``: the server must be told of it first."""
        password = secrets.token_urlsafe(32)
        try:
            self._fresh_password_path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with os.fdopen(os.open(self._fresh_password_path, flags, 0o600), "w", encoding="ascii") as file:
                file.write(password + "\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise _unusable(self.password_path, error) from error
        return password

    def keep_password(self) -> None:
        """Make the fresh password the one."""
        try:
            self._fresh_password_path.replace(self.password_path)
        except OSError as error:
            raise _unusable(self.password_path, error) from error

    @property
    def _fresh_password_path(self) -> Path:
        return self.password_path.with_suffix(".password.new")

    async def end_leftovers(self, programs: Collection[str], working_folders: Collection[Path]) -> None:
        """End servers that an earlier hive left running here. Call it with the lock held.

        A leftover is a process of one of these ``programs`` whose working directory is one of these folders:
        a pid file is no proof, since its number may be another process's by now, and may be missing from it.
        They are asked to stop, then made to. Raises StoresMissing when one outlives even SIGKILL.
        """
        for number, seconds in ((signal.SIGINT, 15.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0)):
            left = _running(programs, working_folders)
            if left:
                log.info("embedded.leftover_ended", store=self.name, processes=len(left), by=number.name)
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
            with anyio.move_on_after(seconds):
                while left:
                    await anyio.sleep(0.02)
                    left = _running(programs, working_folders)
            if not left:
                return
        raise StoresMissing(
            f"a {self.name} server of an earlier hive still runs on {self.path}",
            remedy="end it, then start again",
        )


def _running(programs: Collection[str], working_folders: Collection[Path]) -> list[int]:
    wanted: set[tuple[int, int]] = set()
    for folder in working_folders:
        with suppress(FileNotFoundError):
            status = folder.stat()
            wanted.add((status.st_dev, status.st_ino))
    found: list[int] = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            if Path(entry.path, "comm").read_text().strip() not in programs:
                continue
            status = os.stat(f"{entry.path}/cwd")
        except OSError:
            continue  # gone meanwhile, or another user's
        if (status.st_dev, status.st_ino) in wanted:
            found.append(int(entry.name))
    return found


def _unusable(path: Path, error: OSError) -> StoresMissing:
    return StoresMissing(
        f"{path} cannot be used: {error.strerror or error}",
        remedy="make room there, let hive write to it, or choose another one with --state or HIVE_STATE_DIR",
    )
