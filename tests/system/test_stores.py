"""External stores: other versions, other ways to reach them, and what is said when one does not fit."""

import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from foreign_stores import DEBIAN_POSTGRES, absent, as_nobody, free_port
from hive_process import HiveProcess, until


@pytest.fixture
def debian_redis(tmp_path: Path) -> Iterator[str]:
    """Debian's redis-server 7.0 on TCP."""
    server = shutil.which("redis-server")
    if server is None:
        absent("redis-server")
    port = free_port()
    process = subprocess.Popen(
        [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", str(tmp_path)],
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: _answers(port), 20, "redis-server")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.terminate()
        process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _postgres(binaries: Path, folder: Path, libraries: str | None = None) -> Iterator[str]:
    """A PostgreSQL started by hand on TCP, its own superuser ``hive`` with a password."""
    folder.mkdir(parents=True)
    # the server's own user must reach the folder, whatever the mode of its parents
    where = Path("/var/tmp") / f"hive-test-{os.getpid()}-{folder.name}"
    where.mkdir()
    ids = as_nobody()
    if ids:
        os.chown(where, ids["user"], ids["group"])
    environment = {"LC_ALL": "C.UTF-8", "PATH": "/usr/bin:/bin"}
    if libraries:
        environment["LD_LIBRARY_PATH"] = libraries
    password = where / "password"
    password.write_text("open sesame\n")
    if ids:
        os.chown(password, ids["user"], ids["group"])
    port = free_port()
    data = where / "data"
    try:
        subprocess.run(
            [str(binaries / "initdb"), "-D", str(data), "-U", "hive", "-A", "scram-sha-256", "--no-sync"]
            + ["--pwfile", str(password), "-E", "UTF8"],
            env=environment,
            cwd=where,
            check=True,
            stdout=subprocess.DEVNULL,
            **ids,
        )
        process = subprocess.Popen(
            [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-k", str(where)]
            + ["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"],
            env=environment,
            cwd=where,
            stderr=subprocess.DEVNULL,
            **ids,
        )
        try:
            until(lambda: _answers(port), 30, "postgres")
            yield f"postgresql://hive:open%20sesame@127.0.0.1:{port}/postgres"
        finally:
            process.terminate()
            process.wait()
    finally:
        shutil.rmtree(where, ignore_errors=True)


@pytest.fixture
def wheel_postgres(tmp_path: Path) -> Iterator[str]:
    from hive.embedded.binaries import postgres_programs

    yield from _postgres(postgres_programs(), tmp_path / "wheel")


@pytest.fixture
def debian_postgres(tmp_path: Path) -> Iterator[str]:
    if not (DEBIAN_POSTGRES / "postgres").exists():
        absent("postgresql-15")
    if Path("/usr/share/postgresql/15/extension/vector.control").exists():
        pytest.skip("this PostgreSQL 15 has pgvector")
    yield from _postgres(DEBIAN_POSTGRES, tmp_path / "debian")


def test_stores_of_ones_own(
    wheel_postgres: str, debian_redis: str, new_hive: Callable[..., HiveProcess], tmp_path: Path
) -> None:
    hive = new_hive(environment={"HIVE_POSTGRES__DSN": wheel_postgres, "HIVE_REDIS__URL": debian_redis})
    hive.start()
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# External\n\nStores of my own: okapi.\n")
    hive.cli("connector", "add", "files", "--name", "notes", "--path", str(folder))
    row = until(lambda: hive.attempt("notes"), 60, "an attempt")
    hive.cli("attempts", "--wait", str(row["id"]))
    assert len(hive.json("search", "okapi")) == 1
    assert not (hive.state / "postgres").exists()
    assert "sesame" not in hive.log_text()
    assert hive.stop() == 0


def test_a_postgres_without_pgvector_is_refused_by_name(
    debian_postgres: str, new_hive: Callable[..., HiveProcess]
) -> None:
    hive = new_hive(environment={"HIVE_POSTGRES__DSN": debian_postgres})
    hive.start(ready=False)
    assert hive.wait_exit(90) == 2
    assert "pgvector" in hive.log_text()
    assert "Traceback" not in hive.log_text()
    assert "sesame" not in hive.log_text()


def test_a_wrong_password_is_said_and_not_shown(
    wheel_postgres: str, new_hive: Callable[..., HiveProcess]
) -> None:
    hive = new_hive(environment={"HIVE_POSTGRES__DSN": wheel_postgres.replace("sesame", "barley")})
    hive.start(ready=False)
    assert hive.wait_exit(90) in (2, 3)
    assert "password" in hive.log_text()
    assert "barley" not in hive.log_text()


def test_without_redis(new_hive: Callable[..., HiveProcess], tmp_path: Path) -> None:
    hive = new_hive(environment={"HIVE_REDIS__ENABLED": "false"})
    hive.start()
    assert not (hive.state / "valkey").exists()
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "a.md").write_text("# Lite\n\nNo stream at all: quagga.\n")
    hive.cli("connector", "add", "files", "--name", "notes", "--path", str(folder))
    row = until(lambda: hive.attempt("notes"), 60, "an attempt")
    hive.cli("attempts", "--wait", str(row["id"]))
    assert len(hive.json("search", "quagga")) == 1
    assert hive.stop() == 0
