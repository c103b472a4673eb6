"""Addresses of stores as they may be shown: without the password, and without anything that might be one."""

from urllib.parse import parse_qs, urlsplit


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
