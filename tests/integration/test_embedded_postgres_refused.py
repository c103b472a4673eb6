"""What keeps the embedded PostgreSQL from starting is named; and whose it may be."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from embedded_stores import CHEAP, SETTINGS, query, running
from hive.embedded import EmbeddedPostgres, EmbeddedValkey
from hive.embedded.binaries import postgres_programs
from hive.errors import ConfigurationError, StoresMissing
from hive.settings import Embedded


@pytest.fixture
def full_disk(tmp_path: Path) -> Generator[tuple[Path, Path | None]]:
    """A state folder on a disk that is too small, and programs to use on it.

    Where this user may mount, the disk is real; elsewhere ``initdb`` is one whose writes meet /dev/full.
    """
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        yield folder / "state", None
        subprocess.run(["umount", "--lazy", folder], check=True)
        return
    yield folder / "state", _with_initdb(tmp_path, "cat /etc/passwd >/dev/full")


def _with_initdb(tmp_path: Path, line: str) -> Path:
    """PostgreSQL's programs, but ``initdb`` is a shell script of one line."""
    programs = tmp_path / "install" / "bin"
    programs.mkdir(parents=True)
    (programs.parent / "share").symlink_to(postgres_programs().parent / "share")
    for program in postgres_programs().iterdir():
        (programs / program.name).symlink_to(program)
    (programs / "initdb").unlink()
    (programs / "initdb").write_text(f"#!/bin/sh\n{line}\n")
    (programs / "initdb").chmod(0o755)
    return programs


async def test_a_full_disk_is_named(full_disk: tuple[Path, Path | None]) -> None:
    state_dir, programs = full_disk
    server = EmbeddedPostgres(state_dir, SETTINGS, programs=programs)
    with pytest.raises(StoresMissing, match="the disk is full") as raised:
        await server.start()
    assert str(state_dir) in str(raised.value)
    assert "make room" in str(raised.value)
    assert not (state_dir / "postgres" / "data").exists(), "half a database must not look like one"


async def test_the_last_block_that_fits_by_half_is_a_full_disk_too(tmp_path: Path) -> None:
    """PostgreSQL has no error number for a write that came short: it says how much was written."""
    said = 'ERROR: could not extend file "base/1/2": wrote only 4096 of 8192 bytes at block 0'
    programs = _with_initdb(tmp_path, f"echo '{said}' >&2; exit 1")
    with pytest.raises(StoresMissing, match="the disk is full"):
        await EmbeddedPostgres(tmp_path / "state", SETTINGS, programs=programs).start()


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoresMissing, match="cannot be used"):
        await EmbeddedPostgres(tmp_path / "file" / "state", SETTINGS).start()


async def test_another_major_version_is_refused(state_dir: Path) -> None:
    async with running(state_dir):
        pass
    (state_dir / "postgres" / "data" / "PG_VERSION").write_text("16\n")
    with pytest.raises(ConfigurationError, match="made by PostgreSQL 16"):
        await EmbeddedPostgres(state_dir, SETTINGS).start()


async def test_without_the_wheel_the_remedy_is_named(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hive.embedded.binaries.POSTGRES_WHEEL", "not_installed_anywhere")
    with pytest.raises(ConfigurationError, match="HIVE_POSTGRES__DSN"):
        await EmbeddedPostgres(state_dir, SETTINGS).start()
    monkeypatch.setattr("hive.embedded.binaries.VALKEY_WHEEL", "not_installed_anywhere")
    with pytest.raises(ConfigurationError, match="HIVE_REDIS__URL"):
        await EmbeddedValkey(state_dir, SETTINGS).start()


async def test_an_unknown_user_to_run_as_is_refused(state_dir: Path) -> None:
    if os.geteuid() != 0:
        assert await _starts(state_dir, Embedded(user="nobody-of-that-name"))
        return
    with pytest.raises(ConfigurationError, match="nobody-of-that-name"):
        await EmbeddedPostgres(state_dir, Embedded(user="nobody-of-that-name")).start()
    with pytest.raises(ConfigurationError, match="root"):
        await EmbeddedPostgres(state_dir, Embedded(user="root")).start()


async def _starts(state_dir: Path, settings: Embedded) -> bool:
    server = EmbeddedPostgres(state_dir, settings, options=CHEAP)
    await server.start()
    await server.stop()
    return True


async def test_a_folder_of_another_user_is_taken_over_by_root(tmp_path: Path) -> None:
    """A state folder made by an ordinary user, then hive as root: the data is the same."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be two users")
    state_dir = tmp_path / "state"
    async with running(state_dir) as server:
        await query(server.dsn, "create table kept as select 7 as a")
    for folder, _, files in os.walk(state_dir / "postgres"):
        for path in [folder, *(os.path.join(folder, file) for file in files)]:
            os.chown(path, 12345, 12345)
    async with running(state_dir) as server:
        assert await query(server.dsn, "select a from kept") == 7


def test_an_ordinary_user_can_run_it(tmp_path: Path) -> None:
    """The same as an unprivileged user, wherever this suite itself runs as root."""
    if os.geteuid() != 0:
        pytest.skip("every other test here is this one")
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from hive.embedded import EmbeddedPostgres, EmbeddedValkey\n"
        "from hive.settings import Embedded\n"
        "async def main():\n"
        "    for kind in (EmbeddedPostgres, EmbeddedValkey):\n"
        "        for _ in range(2):\n"
        "            server = kind(Path(sys.argv[1]), Embedded())\n"
        "            await server.start()\n"
        "            await server.stop()\n"
        "asyncio.run(main())\n"
    )
    home = Path("/var/tmp") / f"hive-user-{os.getpid()}"
    home.mkdir()
    try:
        shutil.chown(home, "nobody")
        # The capability stands for an interpreter that others may run too: this one may lie in root's home.
        reach = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
        command = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *reach]
        result = subprocess.run(
            [*command, sys.executable, "-B", "-c", program, home / "state"],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert result.returncode == 0, result.stderr
    finally:
        shutil.rmtree(home, ignore_errors=True)
