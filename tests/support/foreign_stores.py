"""Stores that the tests start by themselves, as an operator would: Debian's, or the wheel's by hand."""

import os
import pwd
import random
import shutil
import socket
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any, NoReturn

import pytest

DEBIAN_POSTGRES = Path("/usr/lib/postgresql/15/bin")


def absent(what: str) -> NoReturn:
    """Skip the test; on the machine that must have it, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"{what} is not installed")
    pytest.skip(f"{what} is not installed")


def servers_folder(name: str) -> Generator[Path]:
    """A folder for servers that run as somebody else, gone at the end. The body of a fixture.

    Not pytest's ``tmp_path_factory``: it keeps the folders of three runs, and these are 100 MB each.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"hive-{name}-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def as_nobody() -> dict[str, Any]:
    """For ``subprocess``: whom to start a PostgreSQL as, since it refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def free_port() -> int:
    """A port of this machine that nobody uses, for a server that is started later, or again.

    Not one that the kernel chooses: until the server is up, it would give the same one to any connection that
    is made meanwhile. These it gives to nobody.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports are in use")
