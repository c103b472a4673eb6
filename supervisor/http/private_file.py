"""Small files that only hive's own user may read, written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from hive.errors import ConfigurationError


def write_private(file: Path, text: str) -> None:
    """Write ``text`` with mode 0600. A kill or a full disk leaves what was there before.

    Raises ConfigurationError with the system's own reason.
    """
    fresh = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(
            os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8"
        ) as stream:
            stream.write(text)
        fresh.replace(file)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise ConfigurationError(f"{file} cannot be written: {error.strerror or error}") from error
