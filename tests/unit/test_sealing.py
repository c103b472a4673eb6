"""Sealed secrets and the key that opens them."""

import base64
import errno
import os
from pathlib import Path

import pytest
from pydantic import SecretStr

from hive.errors import ConfigurationError, NeedsOperator, StoresMissing
from hive.settings import Secrets
from hive.store.sealing import KEY_FILE, Sealer

KEY = base64.b64encode(b"k" * 32).decode()


def test_what_is_sealed_opens_again_after_a_restart(tmp_path: Path) -> None:
    sealed = Sealer.load(Secrets(), tmp_path).seal(b'{"token": "s3cret"}')
    assert b"s3cret" not in sealed
    assert Sealer.load(Secrets(), tmp_path).unseal(sealed) == b'{"token": "s3cret"}'
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert [file.name for file in tmp_path.iterdir()] == [KEY_FILE]


def test_a_given_key_makes_no_file(tmp_path: Path) -> None:
    sealer = Sealer.load(Secrets(key=SecretStr(KEY)), tmp_path)
    assert sealer.unseal(sealer.seal(b"")) == b""
    assert not any(tmp_path.iterdir())


def test_the_same_text_is_never_sealed_alike() -> None:
    sealer = Sealer(b"k" * 32)
    assert sealer.seal(b"same") != sealer.seal(b"same")


@pytest.mark.parametrize(
    "change", [lambda s: s[:-1], lambda s: s[:-1] + b"?", lambda s: b"", lambda s: b"\x02" + s[1:]]
)
def test_another_key_or_an_altered_value_asks_for_the_operator(change) -> None:  # type: ignore[no-untyped-def]
    sealed = Sealer(b"k" * 32).seal(b"s3cret")
    with pytest.raises(NeedsOperator, match="does not open with this key"):
        Sealer(b"k" * 32).unseal(change(sealed))
    with pytest.raises(NeedsOperator, match="HIVE_SECRETS__KEY"):
        Sealer(b"x" * 32).unseal(sealed)


@pytest.mark.parametrize("key", ["short", base64.b64encode(b"k" * 31).decode(), "ü" * 44])
def test_a_key_that_is_none_is_refused_without_being_shown(key: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"secrets\.key") as raised:
        Sealer.load(Secrets(key=SecretStr(key)), tmp_path)
    assert key not in str(raised.value)
    (tmp_path / KEY_FILE).write_text(key)
    with pytest.raises(ConfigurationError, match=KEY_FILE):
        Sealer.load(Secrets(), tmp_path)


def test_a_readable_key_file_is_closed(tmp_path: Path) -> None:
    Sealer.load(Secrets(), tmp_path)
    (tmp_path / KEY_FILE).chmod(0o644)
    Sealer.load(Secrets(), tmp_path)
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_a_full_disk_is_named_and_leaves_no_half_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoresMissing, match="No space left on device"):
        Sealer.load(Secrets(), tmp_path)
    assert not any(tmp_path.iterdir())
