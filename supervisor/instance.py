"""Identity: the state folder, locked for one hive at a time, and the id it carries from boot to boot.

The lock is what makes "the earlier boot is dead" a fact instead of a guess. It is an exclusive ``flock`` on
a close-on-exec descriptor: it ends with the process, however that ends, and no program started by hive
keeps it.
"""

import errno
import fcntl
import os
from pathlib import Path
from uuid import UUID, uuid4

import anyio

from hive.errors import ConfigurationError

LOCK_FILE = "hive.lock"
ID_FILE = "instance"
LINGER_SECONDS = 5.0
POLL_SECONDS = 0.05


class FolderInUse(ConfigurationError):
    """Another hive runs on this state folder. Exit code 2: two hives need two folders."""

    code = "folder_in_use"


class FolderUnusable(ConfigurationError):
    """The state folder cannot be written: it is full, read-only, or somebody else's. Exit code 2."""

    code = "folder_unusable"


class Instance:
    """A locked state folder. ``id`` is the same for every boot on it."""

    def __init__(self, folder: Path, id: UUID, lock: int) -> None:
        self.folder = folder
        self.id = id
        self._lock = lock

    @classmethod
    async def lock(cls, folder: Path, *, linger_seconds: float = LINGER_SECONDS) -> "Instance":
        """Create ``folder`` if need be (mode 0700), lock it, and read or make its id.

        A lock whose holder is dead is waited for, ``linger_seconds`` at the most: a child forked by a killed
        hive may hold its copy for some more milliseconds. Raises ``FolderInUse`` naming the holder's pid, or
        ``FolderUnusable`` with the system's own reason.
        """
        try:
            lock = _open_lock(folder)
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            await _take(lock, folder, linger_seconds)
            _overwrite(lock, f"{os.getpid()}\n")
            return cls(folder, _read_or_make_id(folder), lock)
        except OSError as error:
            os.close(lock)
            raise _unusable(folder, error) from error
        except BaseException:
            os.close(lock)
            raise

    def release(self) -> None:
        """Give the folder up; harmless when repeated. The process's end does the same."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def holder_of(folder: Path) -> int | None:
    """The pid that last locked ``folder``, as its lock file says; None when that cannot be read."""
    try:
        return int((folder / LOCK_FILE).read_text().strip())
    except (OSError, ValueError):
        return None


def _open_lock(folder: Path) -> int:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


async def _take(lock: int, folder: Path, linger_seconds: float) -> None:
    waited = 0.0
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = holder_of(folder)
            if waited >= linger_seconds or (pid is not None and _runs(pid)):
                raise FolderInUse(
                    f"another hive{f' (pid {pid})' if pid is not None else ''} runs on {folder}",
                    remedy="stop it, or give this one a folder of its own with --state or HIVE_STATE_DIR",
                ) from None
        else:
            return
        await anyio.sleep(POLL_SECONDS)
        waited += POLL_SECONDS


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    # A killed hive that its parent has not reaped yet is dead all the same.
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def _read_or_make_id(folder: Path) -> UUID:
    path = folder / ID_FILE
    try:
        return UUID(path.read_text().strip())
    except FileNotFoundError:
        pass
    except ValueError:
        # Half a line, from a disk that was full: no boot ever ran under it, so a new one loses nothing.
        pass
    made = uuid4()
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        _overwrite(descriptor, f"{made}\n")
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    fresh.replace(path)
    return made


def _overwrite(descriptor: int, text: str) -> None:
    data = text.encode()
    if os.pwrite(descriptor, data, 0) != len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.ftruncate(descriptor, len(data))


def _unusable(folder: Path, error: OSError) -> FolderUnusable:
    return FolderUnusable(
        f"state folder {folder} cannot be used: {error.strerror or error}",
        remedy="hive needs a writable local folder with free space; see --state or HIVE_STATE_DIR",
    )
