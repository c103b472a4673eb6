"""Sealing what must not be read from a copy of the database: connectors' credentials.

AES-256-GCM with a random 96-bit nonce (NIST SP 800-38D allows 2^32 seals under one key). A sealed value is a
format byte, the nonce, then the ciphertext with its tag.
"""

import base64
import binascii
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hive.errors import ConfigurationError, NeedsOperator, StoresMissing
from hive.logger import get_logger
from hive.settings import Secrets

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

log = get_logger(__name__)

KEY_FILE = "secrets.key"
_KEY_BYTES = 32
_NONCE_BYTES = 12
_FORMAT = b"\x01"
_MAKE_ONE = "make one with: openssl rand -base64 32"


class Sealer:
    """Holds the key. Make it with ``load``. ``made``: the key file, where ``load`` had to make one."""

    def __init__(self, key: bytes, made: Path | None = None) -> None:
        self._key = key
        self.made = made

    @cached_property
    def _cipher(self) -> "AESGCM":
        # Loaded with the first secret: a start has none to open.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(self._key)

    @classmethod
    def load(cls, secrets: Secrets, state_dir: Path) -> "Sealer":
        """The key from ``secrets.key``, else from the key file in ``state_dir``, which is made on first use
        (0600).

        Raises ConfigurationError when the key is none, StoresMissing when the file cannot be written.
        """
        given = secrets.key.get_secret_value()
        if given:
            return cls(_parse(given, "secrets.key", _MAKE_ONE))
        path = state_dir / KEY_FILE
        made: Path | None = None
        try:
            text = _read(path)
            if not text:
                text, made = _create(path), path
        except OSError as error:
            raise StoresMissing(
                f"{path} cannot be used: {error.strerror or error}",
                remedy="make room there, let hive write to it, or set HIVE_SECRETS__KEY",
            ) from error
        return cls(_parse(text, str(path), "restore the file from a backup; what it sealed needs it"), made)

    def seal(self, plain: bytes) -> bytes:
        """Encrypt."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORMAT + nonce + self._cipher.encrypt(nonce, plain, None)

    def unseal(self, sealed: bytes) -> bytes:
        """Decrypt; raises NeedsOperator when another key sealed it, or when it was altered."""
        from cryptography.exceptions import InvalidTag

        nonce, body = sealed[1 : 1 + _NONCE_BYTES], sealed[1 + _NONCE_BYTES :]
        try:
            if sealed[:1] != _FORMAT:
                raise InvalidTag
            return self._cipher.decrypt(nonce, body, None)
        except (InvalidTag, ValueError):
            raise NeedsOperator(
                "a stored secret does not open with this key",
                remedy=f"bring back the key it was sealed with (HIVE_SECRETS__KEY, or {KEY_FILE} in the state"
                " folder), or enter the secret anew",
            ) from None


def _parse(text: str, where: str, remedy: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigurationError(f"{where}: not a key of {_KEY_BYTES} bytes in base64", remedy=remedy)
    return key


def _read(path: Path) -> str | None:
    try:
        mode = path.stat().st_mode
        text = path.read_text("ascii", "replace")
    except FileNotFoundError:
        return None
    if mode & 0o077:
        log.warning("secrets.key_was_readable", file=str(path))
        path.chmod(0o600)
    return text


def _create(path: Path) -> str:
    """Write a new key beside its place and move it there: no reader sees half of one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    text = base64.b64encode(os.urandom(_KEY_BYTES)).decode() + "\n"
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return text
