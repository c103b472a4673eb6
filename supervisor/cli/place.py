"""Which hive is meant: its state folder, its address, its token. Without hive's own settings, to start fast.

The order of sources is that of ``hive.config_file``: the command line, ``HIVE_SECTION__KEY``, the shorthands
``HIVE_STATE_DIR`` and ``HIVE_CONFIG``, the configuration file, the defaults.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.cli.failure import CONFIGURATION, CommandFailed, NotRunning

DEFAULT_STATE_DIR = ".hive"
DEFAULT_CONFIG = "config.toml"
DEFAULT_PORT = 8420
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where a hive listens, as this host reaches it."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The hive that the command line means. ``given_state`` is what ``--state`` said, if it was given."""

    state_dir: Path
    config: Path | None
    port: int | None
    tenant: str | None
    given_state: Path | None

    def address(self) -> Address:
        """Where it listens: ``--port``, else what a running hive wrote down, else what the settings say.

        Read anew at each call, since a hive that was started again may listen elsewhere.
        """
        written = self._written()
        if self.port is not None:
            return Address(host=_reachable(str(written.get("host", "127.0.0.1"))), port=self.port)
        if written:
            return Address(host=_reachable(str(written["host"])), port=int(written["port"]))
        http = _table(self.config, "http")
        host = os.environ.get("HIVE_HTTP__HOST") or http.get("host") or "127.0.0.1"
        port = os.environ.get("HIVE_HTTP__PORT") or http.get("port", DEFAULT_PORT)
        try:
            number = int(port)
        except ValueError:
            raise CommandFailed(f"http.port: {port!r} is no port", code=CONFIGURATION) from None
        if number == 0:  # hive takes a free one and writes it down: nothing written, nothing running
            raise not_running(self.state_dir)
        return Address(host=_reachable(str(host)), port=number)

    def token(self) -> str:
        """The token of the state folder; raises NotRunning when no hive ever ran there."""
        file = self.state_dir / "token"
        try:
            return file.read_text("ascii").strip()
        except FileNotFoundError:
            raise not_running(self.state_dir) from None
        except PermissionError:
            raise CommandFailed(
                f"{file} may not be read by this user", remedy="run as the user hive runs as"
            ) from None
        except (OSError, UnicodeDecodeError) as error:
            raise CommandFailed(f"{file} cannot be read: {error}") from error

    def overrides(self) -> dict[str, dict[str, object]]:
        """What the command line says, as nested settings for ``hive.config_file.load``."""
        values: dict[str, dict[str, object]] = {}
        if self.given_state is not None:
            values["process"] = {"state_dir": str(self.given_state)}
        if self.port is not None:
            values["http"] = {"port": self.port}
        return values

    def _written(self) -> dict[str, Any]:
        try:
            found = json.loads((self.state_dir / "http.json").read_text("ascii"))
            return {"host": str(found["host"]), "port": int(found["port"])}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def find(*, state: str | None, config: str | None, port: int | None, tenant: str | None) -> Place:
    """The place that these options, the environment and the configuration file name."""
    file = _config_file(config)
    named = (
        state
        or os.environ.get("HIVE_PROCESS__STATE_DIR")
        or os.environ.get("HIVE_STATE_DIR")
        or _table(file, "process").get("state_dir")
        or DEFAULT_STATE_DIR
    )
    return Place(
        state_dir=Path(str(named)).absolute(),
        config=file,
        port=port,
        tenant=tenant,
        given_state=None if state is None else Path(state).absolute(),
    )


def not_running(state_dir: Path) -> NotRunning:
    """The one sentence for a hive that is not there."""
    return NotRunning(f"no hive is running on state folder {state_dir}", remedy="start it with `hive run`")


def _config_file(config: str | None) -> Path | None:
    named = config or os.environ.get("HIVE_CONFIG")
    if named:
        return Path(named)
    usual = Path(DEFAULT_CONFIG)
    return usual if usual.is_file() else None


def _table(config: Path | None, name: str) -> dict[str, Any]:
    """One table of the configuration file. A wrong file is reported by whoever loads it in earnest."""
    if config is None:
        return {}
    import tomllib

    try:
        found = tomllib.loads(config.read_text("utf-8")).get(name, {})
    except FileNotFoundError:
        raise CommandFailed(
            f"{config}: no such file", remedy="name it with --config", code=CONFIGURATION
        ) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CommandFailed(f"{config}: {error}", code=CONFIGURATION) from error
    return found if isinstance(found, dict) else {}


def _reachable(host: str) -> str:
    return _ANY_ADDRESS.get(host, host)
