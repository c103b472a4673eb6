"""The folders that the ``files`` connector may read below: the configured ones, and those added locally.

Whoever may use the state folder's token sits on the host and may read it anyway; so the command line adds
roots, and no other caller does. The state folder itself is never readable: it holds the token and the key.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from hive.errors import ConfigurationError, InvalidInput
from supervisor.http.private_file import write_private

FIELD = "config.path"


class FileRoots:
    """``configured``: ``connectors.files.roots``. Local ones are kept in ``<state_dir>/roots.json``."""

    def __init__(self, configured: Sequence[Path], state_dir: Path) -> None:
        self._configured = tuple(Path(os.path.realpath(root)) for root in configured)
        self._state_dir = Path(os.path.realpath(state_dir))
        self._file = self._state_dir / "roots.json"

    def all(self) -> tuple[Path, ...]:
        """Every root, resolved. The local ones are read anew: another process may have added one."""
        return (*self._configured, *self._local())

    def check(self, path: str | Path) -> Path:
        """``path`` with its symbolic links resolved, if it exists below a root; else raises InvalidInput.

        Whether something exists is told only of what lies below a root.
        """
        resolved = self._resolve(path)
        if not any(resolved == root or root in resolved.parents for root in self.all()):
            raise InvalidInput(
                FIELD,
                f"{_shown(path)} lies below none of the folders hive may read",
                remedy="add it to connectors.files.roots, or run `hive connector add files` on the host",
            )
        return _existing(path, resolved)

    def add(self, path: str | Path) -> Path:
        """Make ``path``, which must exist, readable from now on; returns it resolved."""
        resolved = _existing(path, self._resolve(path))
        local = self._local()
        if not any(resolved == root or root in resolved.parents for root in (*self._configured, *local)):
            write_private(
                self._file, json.dumps({"roots": [*map(str, local), str(resolved)]}, indent=2) + "\n"
            )
        return resolved

    def _resolve(self, path: str | Path) -> Path:
        text = str(path)
        if "\x00" in text or not text:
            raise InvalidInput(FIELD, "is empty or contains a NUL byte")
        if not os.path.isabs(text):
            raise InvalidInput(FIELD, f"{_shown(path)} is not absolute", remedy="give the whole path")
        try:
            resolved = Path(os.path.realpath(text))
        except (OSError, ValueError) as error:
            raise InvalidInput(FIELD, f"{_shown(path)} cannot be resolved: {error}") from error
        if resolved == self._state_dir or self._state_dir in resolved.parents:
            raise InvalidInput(FIELD, f"{_shown(path)} lies in hive's state folder, which is never read")
        return resolved

    def _local(self) -> tuple[Path, ...]:
        try:
            stored = json.loads(self._file.read_text("utf-8"))
            return tuple(Path(root) for root in stored["roots"])
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigurationError(
                f"{self._file} cannot be read: {error}", remedy="repair or remove it"
            ) from error


def _existing(path: str | Path, resolved: Path) -> Path:
    try:
        if resolved.exists():
            return resolved
    except OSError as error:  # a name too long, a folder on the way that may not be searched
        raise InvalidInput(FIELD, f"{_shown(path)}: {error.strerror or error}") from error
    raise InvalidInput(FIELD, f"{_shown(path)} does not exist")


def _shown(path: str | Path) -> str:
    return repr(str(path)[:200])
