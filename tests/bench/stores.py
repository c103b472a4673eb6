"""The servers that everything runs against: one Valkey without persistence, one PostgreSQL as it ships.

Both on TCP, on the loopback, since not every peer speaks Unix sockets. Each run gets an empty Valkey and a
fresh database, cloned from the system's own template.
"""

import asyncio
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import asyncpg
import redis
from redis.exceptions import RedisError

from hive.embedded import EmbeddedPostgres
from hive.embedded.binaries import valkey_program
from hive.ids import DEFAULT_TENANT
from hive.settings import Embedded, Postgres
from hive.store.postgres import Database
from hive.store.schema import install
from hive.store.tenants import Tenants

DATABASE = "bench"


class Stores:
    """Started by ``start``, ended by ``stop``, or with the process."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._loop = asyncio.Runner()
        self._valkey: subprocess.Popen[bytes] | None = None
        self._postgres: EmbeddedPostgres | None = None
        self._templates: set[str] = set()
        self._admin_dsn = ""
        self.redis_url = ""
        self.postgres_dsn = ""

    def start(self) -> None:
        """Start both on free ports."""
        shutil.rmtree(self._root, ignore_errors=True)
        self._root.mkdir(parents=True)
        port = _free_port()
        self._valkey = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "--", str(valkey_program())),
                *("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
                *("--dir", str(self._root), "--logfile", str(self._root / "valkey.log")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        self.redis_url = f"redis://127.0.0.1:{port}/0"
        self.client: Any = redis.Redis.from_url(self.redis_url)
        _wait(lambda: bool(self.client.ping()), "Valkey")

        port = _free_port()
        access = self._root / "pg_hba.conf"
        access.write_text("local all hive scram-sha-256\nhost all hive 127.0.0.1/32 scram-sha-256\n")
        self._postgres = EmbeddedPostgres(
            self._root,
            Embedded(),
            options={
                "listen_addresses": "127.0.0.1",
                "port": str(port),
                "hba_file": str(access),
                "max_connections": "300",
            },
        )
        own = urlsplit(self._loop.run(self._postgres.start()))
        address = f"postgresql://hive:{quote(own.password or '')}@127.0.0.1:{port}"
        self._admin_dsn = f"{address}/hive"
        self.postgres_dsn = f"{address}/{DATABASE}"

    def stop(self) -> None:
        """End both and remove their data."""
        if self._postgres is not None:
            self._loop.run(self._postgres.stop())
        if self._valkey is not None:
            self._valkey.kill()
            self._valkey.wait()
        self._loop.close()
        shutil.rmtree(self._root, ignore_errors=True)

    def run(self, work: Any) -> Any:
        """Run a coroutine on the loop that the servers belong to."""
        return self._loop.run(work)

    def fresh(self, template: str, make: Callable[[str], None] | None = None) -> None:
        """Empty Valkey, and clone the database from ``template``: ``make(dsn)`` fills it the first time.

        Without ``make`` it is hive's, with the tenant ``public`` and a table for effects.
        """
        self.client.flushall()
        if template not in self._templates:
            self.run(self._admin(f"drop database if exists {template} with (force)"))
            self.run(self._admin(f"create database {template}"))
            dsn = self._admin_dsn.rpartition("/")[0] + f"/{template}"
            if make is None:
                self.run(_make_hive(dsn))
            else:
                make(dsn)
            self._templates.add(template)
        self.run(self._admin(f"drop database if exists {DATABASE} with (force)"))
        self.run(self._admin(f"create database {DATABASE} template {template}"))

    def query(self, sql: str, *arguments: Any) -> Any:
        """One value from the database of this run."""

        async def ask() -> Any:
            connection = await asyncpg.connect(self.postgres_dsn)
            try:
                return await connection.fetchval(sql, *arguments)
            finally:
                await connection.close()

        return self.run(ask())

    async def _admin(self, sql: str) -> None:
        connection = await asyncpg.connect(self._admin_dsn)
        try:
            await connection.execute(sql)
        finally:
            await connection.close()


async def _make_hive(dsn: str) -> None:
    database = await Database.open(dsn, settings=Postgres(pool_size=1))
    try:
        async with database.transaction() as connection:
            await install(connection, "shared", "hive")
        await Tenants(database).create(DEFAULT_TENANT)
        async with database.acquire() as connection:
            await connection.execute("create schema bench")
            await connection.execute(
                "create table bench.effect (number int not null, at timestamptz default now())"
            )
    finally:
        await database.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(ready: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if ready():
                return
        except (OSError, RedisError):
            pass
        time.sleep(0.02)
    raise SystemExit(f"bench: {what} did not start")
