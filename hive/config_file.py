"""Reading settings, and rendering the defaults as ``config.toml``.

Sources, strongest first: ``HIVE_SECTION__KEY`` in the environment, the configuration file, the defaults.
All are merged key by key, so that ``HIVE_POOLS__LIGHT__SLOTS=48`` changes one number and nothing else.
pydantic-settings reads the environment. Merging and checking are done here, for all sources at once: told to
do all of it, it built and checked every section twice, 40 ms of each start.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, EnvSettingsSource

from hive.errors import ConfigurationError
from hive.section import Section
from hive.settings import Settings
from hive.topology import default_pools, default_providers, default_schedules

PREFIX = "HIVE_"
# Named by the environment for the command line, not settings of their own.
SHORTHANDS = {"HIVE_STATE_DIR": ("process", "state_dir"), "HIVE_CONFIG": None}


def load(path: Path | None, *, overrides: Mapping[str, Any] | None = None) -> Settings:
    """Read the settings; raises ConfigurationError naming each key that is wrong.

    ``path``: the configuration file, which must exist; None: no file. ``overrides``: nested values that win
    over everything, from the command line.
    """
    values = _defaults()
    for source in (_read(path) if path is not None else {}, _shorthands(), _environment(), overrides or {}):
        _merge(values, source)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise _refusal(error, path) from error


def _merge(values: dict[str, Any], stronger: Mapping[str, Any], *place: str) -> None:
    """Have ``stronger`` win, key by key. Refuses another value for a table: the next source would hide it."""
    for key, value in stronger.items():
        known = values.get(key)
        if not isinstance(known, dict):
            values[key] = value
        elif isinstance(value, Mapping):
            _merge(cast(dict[str, Any], known), cast(Mapping[str, Any], value), *place, key)
        else:
            raise ConfigurationError(f"invalid settings:\n  {'.'.join((*place, key))}: must be a table")


def _read(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"{path}: no such file", remedy="name it with --config") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _shorthands() -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, place in SHORTHANDS.items():
        if place is not None and os.environ.get(name):
            values.setdefault(place[0], {})[place[1]] = os.environ[name]
    return values


def _defaults() -> dict[str, Any]:
    """A table for each section, so that all are checked at one go, and what stands in those of free names."""
    return {
        **_tables(Settings),
        "pools": {name: pool.model_dump() for name, pool in default_pools().items()},
        "schedules": default_schedules(),
        "providers": default_providers(),
    }


def _tables(section: type[Section]) -> dict[str, Any]:
    inner = {name: field.annotation for name, field in section.model_fields.items()}
    return {
        name: _tables(kind)
        for name, kind in inner.items()
        if isinstance(kind, type) and issubclass(kind, Section)
    }


def _environment() -> dict[str, Any]:
    """``HIVE_SECTION__KEY``. A misspelt one would otherwise be silently ignored, so it is refused."""
    for name in os.environ:
        if not name.startswith(PREFIX) or name in SHORTHANDS:
            continue
        section = name.removeprefix(PREFIX).split("__")[0].lower()
        if section not in Settings.model_fields or "__" not in name:
            raise ConfigurationError(
                f"environment variable {name}: no such setting",
                remedy="settings are named HIVE_SECTION__KEY, as in HIVE_HTTP__PORT",
            )
    return _Environment(_Fields, env_prefix=PREFIX, env_nested_delimiter="__")()


class _Fields(BaseSettings, Settings):  # pyright: ignore[reportIncompatibleVariableOverride]
    """What the environment may set; never made, read for its fields alone."""


class _Environment(EnvSettingsSource):
    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        """Lists are written as JSON; what is none is left to the check, which names the whole variable."""
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def _refusal(error: ValidationError, path: Path | None) -> ConfigurationError:
    lines: list[str] = []
    for problem in error.errors(include_input=False, include_url=False):
        steps = [str(part) for part in problem["loc"]]
        place = ".".join(steps) or "settings"
        variable = PREFIX + "__".join(steps).upper()
        if problem["type"] == "tuple_type" and variable in os.environ:
            return ConfigurationError(
                f"environment variable {variable}: not a list in JSON",
                remedy=f"""as in {variable}='["one", "two"]'""",
            )
        if problem["type"] == "extra_forbidden":
            lines.append(f"{place}: unknown setting")
        else:
            lines.append(f"{place}: {problem['msg'].removeprefix('Value error, ')}")
    where = f" in {path} or the environment" if path else ""
    return ConfigurationError(f"invalid settings{where}:\n  " + "\n  ".join(lines))


def render() -> str:
    """The defaults as a commented ``config.toml``."""
    lines = [
        "# hive's settings. Every one stands here with its default and why it exists.",
        "# Override one with HIVE_SECTION__KEY, as in HIVE_HTTP__PORT=9000 or HIVE_POOLS__LIGHT__SLOTS=48.",
        "# Secrets (DSNs, keys) belong in the environment rather than in this file.",
        "",
    ]
    settings = Settings()
    for name, field in Settings.model_fields.items():
        value = getattr(settings, name)
        if isinstance(value, BaseModel):
            lines += _table(name, value)
        elif name in ("schedules", "limits", "providers"):
            lines += [f"# {field.description}", f"[{name}]"]
            lines += [f"{key} = {_literal(each)}" for key, each in value.items()]
            lines.append("")
        else:
            lines.append(f"# {field.description}")
            for key, each in value.items():
                lines += [f"[{name}.{key}]"]
                lines += [f"{part} = {_literal(getattr(each, part))}" for part in type(each).model_fields]
                lines.append("")
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(path: str, section: BaseModel) -> list[str]:
    nested: list[str] = []
    lines = [f"# {(type(section).__doc__ or '').strip()}", f"[{path}]"]
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            nested += _table(f"{path}.{name}", value)
        else:
            lines += [f"# {field.description}", f"{name} = {_literal(value)}"]
    if len(lines) == 2 and nested:
        return nested
    return [*lines, "", *nested]


def _literal(value: Any) -> str:
    if isinstance(value, SecretStr):
        value = value.get_secret_value()
    if isinstance(value, tuple):
        return json.dumps([str(each) for each in value])  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, Path):
        return json.dumps(str(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def main(arguments: list[str]) -> int:
    """``--write FILE`` renders the defaults; ``--check FILE`` says whether the file still equals them."""
    match arguments:
        case ["--write", file]:
            Path(file).write_text(render(), "utf-8")
            return 0
        case ["--check", file]:
            if Path(file).read_text("utf-8") == render():
                return 0
            sys.stderr.write(f"{file} differs from the settings in code: run `make config`\n")
            return 1
        case _:
            sys.stderr.write("usage: python -m hive.config_file --write FILE | --check FILE\n")
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
