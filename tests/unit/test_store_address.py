"""Addresses in messages show where, and never a password."""

import pytest

from hive.store.address import describe


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
