"""Addresses in messages show where, and never a password; a mistake about TLS is told from an outage."""

import ssl
from pathlib import Path

import pytest

from hive.errors import ConfigurationError, StoreDown
from hive.store.address import describe, refuse_tls_mistake


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (
            "postgresql://hive:s3cret@db.example:6543/hive?sslmode=require&password=s3cret",
            "db.example:6543/hive",
        ),
        ("postgresql://hive:s3cret@/hive?host=/run/hive%20x&port=5432", "/run/hive x/hive"),
        ("redis://:s3cret@cache:6379/0", "cache:6379/0"),
        ("unix://:s3cret@/run/valkey.sock", "/run/valkey.sock"),
        ("postgresql://hive@s3cret:port/x", "the configured address"),
        ("s3cret", "the configured address"),
        ("", "the configured address"),
    ],
)
def test_only_the_place_is_shown(address: str, shown: str) -> None:
    assert describe(address) == shown
    assert "s3cret" not in describe(address)


def caused(cause: BaseException) -> StoreDown:
    error = StoreDown("redis", "answering a ping")
    error.__cause__ = ConnectionError("as redis-py says it")
    error.__cause__.__context__ = cause
    return error


def mistake(address: str, cause: BaseException) -> str | None:
    try:
        refuse_tls_mistake("Redis", address, caused(cause))
    except ConfigurationError as error:
        return str(error)
    return None


def unverified() -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_message = "it is somebody else's"
    return error


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (unverified(), "the server's certificate is not accepted: it is somebody else's"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER]"), "TLS failed: [SSL: WRONG_VERSION_NUMBER]"),
        (ssl.SSLEOFError(8, "cut off"), None),
        (ssl.SSLZeroReturnError(6, "closed"), None),
        (ConnectionRefusedError(), None),
        (FileNotFoundError(), None),  # a Unix socket of a server that is not up yet
    ],
)
def test_what_waiting_cannot_mend_is_a_mistake(cause: BaseException, said: str | None) -> None:
    told = mistake("rediss://:s3cret@cache/0", cause)
    if said is None:
        assert told is None
    else:
        assert told is not None
        assert told.startswith(f"Redis at cache/0: {said}")
        assert "HIVE_REDIS__URL" in told
        assert "s3cret" not in told


@pytest.mark.parametrize(
    "address",
    ["rediss://cache/0?ssl_ca_certs={}", "postgresql://db/hive?sslmode=verify-full&sslrootcert={}"],
)
def test_a_file_that_cannot_be_read_is_a_mistake(tmp_path: Path, address: str) -> None:
    path = tmp_path / "ca.pem"
    assert str(path) in (mistake(address.format(path), FileNotFoundError()) or "")
    path.touch()
    assert mistake(address.format(path), FileNotFoundError()) is None
