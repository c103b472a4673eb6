"""A backup holds what a restore needs: tried by restoring it."""

import asyncio
import json
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from hive.embedded.binaries import postgres_programs
from hive.errors import Conflict, HiveError, NotFound, StoreDown
from hive.ids import TenantId
from hive.settings import Postgres, Secrets
from hive.store import migration
from hive.store.backup import backup
from hive.store.postgres import Database
from hive.store.sealing import Sealer
from hive.store.tenants import Tenants

ACME = TenantId("acme")


async def fill(database: Database, state_dir: Path) -> None:
    sealed = Sealer.load(Secrets(), state_dir).seal(b"s3cret")
    await Tenants(database).create(ACME)
    async with database.transaction(ACME) as connection:
        await connection.execute("insert into credential (sealed) values ($1)", sealed)
        await connection.execute(
            "insert into document (source_id, title, link, content_hash, version, chunk_count)"
            " values ('1', 'a', 'b', '', '{1}', 1)"
        )
        await connection.execute(
            "insert into chunk (document, ordinal, body, terms, embedding)"
            " select id, 0, 'body', 'body', '[1,2]' from document"
        )


@pytest.mark.parametrize("name", ["backup", "backup.tar"])
async def test_a_backup_restores(
    database: Database, empty_postgres_dsn: str, state_dir: Path, tmp_path: Path, name: str
) -> None:
    await fill(database, state_dir)
    target = tmp_path / "to" / name
    made = await backup(target, direct_dsn=database.direct_dsn, state_dir=state_dir)
    assert made.path == target
    assert made.key_included
    assert made.total_bytes > 1000
    folder = target
    if name.endswith(".tar"):
        assert target.stat().st_mode & 0o077 == 0
        folder = tmp_path / "unpacked"
        with tarfile.open(target) as archive:
            archive.extractall(folder, filter="data")
    assert (folder / "secrets.key").stat().st_mode & 0o077 == 0
    assert json.loads((folder / "backup.json").read_text())["key_included"] is True
    assert [file.name for file in target.parent.iterdir()] == [name], "nothing half-made is left beside it"

    restore = ["--no-owner", "--no-privileges", "--exit-on-error", "-d", empty_postgres_dsn]
    program = postgres_programs() / "pg_restore"
    await asyncio.to_thread(subprocess.run, [program, *restore, folder / "hive.dump"], check=True)
    restored = await Database.open(empty_postgres_dsn, settings=Postgres(pool_size=2))
    assert not await migration.pending(restored), "the versions came along"
    assert [tenant.id for tenant in await Tenants(restored).list()] == ["acme", "public"]
    async with restored.transaction(ACME) as connection:
        assert (
            await connection.fetchval("select body from chunk order by embedding <-> '[1,1]' limit 1")
            == "body"
        )
        sealed = await connection.fetchval("select sealed from credential")
    assert Sealer.load(Secrets(), folder).unseal(sealed) == b"s3cret"
    await restored.close()


async def test_nothing_is_overwritten(database: Database, state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    (tmp_path / "is.tar").write_text("")
    for target in (tmp_path / "full", tmp_path / "is.tar"):
        with pytest.raises(Conflict, match="exists already"):
            await backup(target, direct_dsn=database.direct_dsn, state_dir=state_dir)
    (tmp_path / "empty").mkdir()
    made = await backup(tmp_path / "empty", direct_dsn=database.direct_dsn, state_dir=state_dir)
    assert not made.key_included, "there is none yet"


async def test_the_password_stands_on_no_command_line(
    database: Database, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "arguments"
    program = tmp_path / "bin" / "pg_dump"
    program.parent.mkdir()
    program.write_text(
        f'#!/bin/sh\necho "$@" >>{seen}\n[ "$1" = --version ] && echo "pg_dump (PostgreSQL) 18.0" && exit\n'
        f'exec {postgres_programs() / "pg_dump"} "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    await backup(tmp_path / "made", direct_dsn=database.direct_dsn, state_dir=state_dir)
    password = database.dsn.split("hive:", 1)[1].split("@", 1)[0]
    assert "--format=custom" in seen.read_text()
    assert password not in seen.read_text()


async def test_an_empty_database_has_nothing_to_back_up(
    empty_postgres_dsn: str, state_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotFound, match="no hive yet"):
        await backup(tmp_path / "to", direct_dsn=empty_postgres_dsn, state_dir=state_dir)
    assert not (tmp_path / "to").exists()


async def test_failures_are_told_and_leave_nothing(
    database: Database, state_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StoreDown):
        await backup(tmp_path / "no", direct_dsn="postgresql://hive:x@127.0.0.1:1/x", state_dir=state_dir)
    (tmp_path / "file").write_text("")
    with pytest.raises(HiveError, match="could not be written"):
        await backup(tmp_path / "file" / "no", direct_dsn=database.direct_dsn, state_dir=state_dir)
    program = tmp_path / "bin" / "pg_dump"
    program.parent.mkdir()
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "pg_dump (PostgreSQL) 18.0" && exit\ncat $0 >/dev/full\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    with pytest.raises(HiveError, match="No space left on device"):
        await backup(tmp_path / "to" / "no", direct_dsn=database.direct_dsn, state_dir=state_dir)
    assert not any((tmp_path / "to").iterdir())
