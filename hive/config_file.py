"""Reading settings, and rendering the defaults as ``config.toml``.

Sources, strongest first: ``HIVE_SECTION__KEY`` in the environment, the configuration file, the defaults.
All are merged key by key, so that ``HIVE_POOLS__LIGHT__SLOTS=48`` changes one number and nothing else.
"""

import json
import os
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from hive.errors import ConfigurationError
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
    values = _read(path) if path is not None else {}

    class Loaded(BaseSettings, Settings):  # pyright: ignore[reportIncompatibleVariableOverride]
        model_config = SettingsConfigDict(
            env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
        )

        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            del init_settings, dotenv_settings, file_secret_settings
            return (
                _Given(settings_cls, dict(overrides or {})),
                env_settings,
                _Given(settings_cls, _shorthands()),
                _Given(settings_cls, values),
                _Given(settings_cls, _defaults_of_tables()),
            )

    _refuse_unknown_environment()
    _refuse_unreadable_environment()
    try:
        return Loaded()
    except ValidationError as error:
        raise ConfigurationError(_explain(error, path)) from error
    except Exception as error:
        raise ConfigurationError(str(error)) from error


class _Given(PydanticBaseSettingsSource):
    """Plain nested values as a source."""

    def __init__(self, settings_cls: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        del field
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        return self._values


def _read(path: Path) -> dict[str, Any]:
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


def _defaults_of_tables() -> dict[str, Any]:
    return {
        "pools": {name: pool.model_dump() for name, pool in default_pools().items()},
        "schedules": default_schedules(),
        "providers": default_providers(),
    }


def _refuse_unknown_environment() -> None:
    """A misspelt HIVE_… variable would otherwise be silently ignored."""
    for name in os.environ:
        if not name.startswith(PREFIX) or name in SHORTHANDS:
            continue
        section = name.removeprefix(PREFIX).split("__")[0].lower()
        if section not in Settings.model_fields or "__" not in name:
            raise ConfigurationError(
                f"environment variable {name}: no such setting",
                remedy="settings are named HIVE_SECTION__KEY, as in HIVE_HTTP__PORT",
            )


def _refuse_unreadable_environment() -> None:
    """Lists are written as JSON. Of one that is not, pydantic names the section alone."""
    defaults = Settings()
    for name, text in os.environ.items():
        value: object = defaults
        for key in name.removeprefix(PREFIX).lower().split("__") if name.startswith(PREFIX) else ():
            value = getattr(value, key, None)
        if isinstance(value, tuple):
            try:
                json.loads(text)
            except ValueError:
                raise ConfigurationError(
                    f"environment variable {name}: not a list in JSON",
                    remedy=f"""as in {name}='["one", "two"]'""",
                ) from None


def _explain(error: ValidationError, path: Path | None) -> str:
    lines: list[str] = []
    for problem in error.errors(include_input=False, include_url=False):
        place = ".".join(str(part) for part in problem["loc"]) or "settings"
        if problem["type"] == "extra_forbidden":
            lines.append(f"{place}: unknown setting")
        else:
            lines.append(f"{place}: {problem['msg'].removeprefix('Value error, ')}")
    where = f" in {path} or the environment" if path else ""
    return f"invalid settings{where}:\n  " + "\n  ".join(lines)


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
