"""Addresses of stores: as they may be shown (without the password, or what might be one), and their TLS."""

import os
import ssl
from typing import Final
from urllib.parse import parse_qs, urlsplit

from hive.errors import ConfigurationError, StoreDown

# Of redis-py, and of libpq and asyncpg.
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "sslrootcert", "sslcert", "sslkey", "sslcrl")
# A handshake that was cut off: a server that stops or starts, no mistake.
_CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
_REDIS: Final = "check HIVE_REDIS__URL: rediss://…?ssl_ca_certs=FILE names the authority to trust"
_POSTGRES: Final = (
    "check HIVE_POSTGRES__DSN: …?sslmode=verify-full&sslrootcert=FILE names the authority to trust"
)


def describe(address: str) -> str:
    """``host:port/database`` of a DSN or URL, for messages; never more, whatever the address holds."""
    try:
        parts = urlsplit(address)
        query = parse_qs(parts.query)
        host = parts.hostname or next(iter(query.get("host", [])), "")
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "the configured address"
    if parts.scheme not in {"postgresql", "postgres", "redis", "rediss", "unix"}:
        return "the configured address"
    return f"{host}{port}{parts.path}"


def refuse_tls_mistake(store: str, address: str, error: BaseException) -> None:
    """Raise ConfigurationError if ``error`` came of something about TLS that waiting cannot mend."""
    mistake = _tls_mistake(address, error) if isinstance(error, StoreDown) else None
    if mistake is not None:
        remedy = _REDIS if urlsplit(address).scheme == "rediss" else _POSTGRES
        raise ConfigurationError(f"{store} at {describe(address)}: {mistake}", remedy=remedy) from None


def _tls_mistake(address: str, error: BaseException) -> str | None:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not accepted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _CUT_OFF):
            return f"TLS failed: {cause.strerror}"
        cause = cause.__cause__ or cause.__context__  # redis-py names no cause
    query = parse_qs(urlsplit(address).query)
    for name in _FILES:
        for path in query.get(name, []):
            if not os.access(path, os.R_OK):
                return f"{name}={path} cannot be read"
    return None
