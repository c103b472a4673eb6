"""The token in the state folder: whoever can read the file sits on the host, and may do everything."""

import os
import secrets
from pathlib import Path

from hive.errors import ConfigurationError


def local_token(state_dir: Path) -> str:
    """The state folder's token, made on first use. Raises ConfigurationError when it cannot be kept."""
    file = state_dir / "token"
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _stored_token(file)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
    token = f"hive_{secrets.token_urlsafe(32)}"
    try:
        with open(descriptor, "w", encoding="ascii") as stream:
            stream.write(token + "\n")
    except OSError as error:
        file.unlink(missing_ok=True)  # half a token would lock everybody out at the next start
        raise ConfigurationError(f"{file} cannot be written: {error.strerror}") from error
    return token


def _stored_token(file: Path) -> str:
    try:
        if file.stat().st_mode & 0o077:
            file.chmod(0o600)
        token = file.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{file} cannot be read: {error}") from error
    if len(token) < 16:
        raise ConfigurationError(
            f"{file} holds no token", remedy="remove it: a new one is made at the next start"
        )
    return token
