"""Addresses of stores: as they may be shown (without the password, or what might be one), and their TLS."""

import os
import ssl
from typing import Final
from urllib.parse import parse_qs, urlsplit

# Of redis-py, and of libpq and asyncpg.
_FILES: Final = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "sslrootcert", "sslcert", "sslkey", "sslcrl")
# A handshake that was cut off: a server that stops or starts, no mistake.
_CUT_OFF: Final = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)


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


def tls_mistake(address: str, error: BaseException) -> str | None:
    """What is wrong with TLS if that is why ``error`` came and waiting cannot mend it; else None."""
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
