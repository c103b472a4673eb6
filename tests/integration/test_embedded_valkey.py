"""The embedded Valkey: its data, its lock, its death."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis.exceptions import AuthenticationError

from hive.embedded import EmbeddedValkey
from hive.errors import Conflict, StoreDown, StoresMissing
from hive.settings import Embedded, Redis
from hive.store.redis import RedisStore


@asynccontextmanager
async def running(state_dir: Path) -> AsyncGenerator[tuple[EmbeddedValkey, RedisStore]]:
    server = EmbeddedValkey(state_dir, Embedded())
    try:
        store = await RedisStore.open(await server.start(), Redis())
        yield server, store
        await store.close()
    finally:
        await server.stop()


async def test_acknowledged_writes_outlive_stop_and_kill(state_dir: Path) -> None:
    async with running(state_dir) as (_, store):
        await store.client.set("stopped", b"kept")
    async with running(state_dir) as (server, store):
        assert await store.client.get("stopped") == b"kept"
        await store.client.set("killed", b"kept")
        pid = server.pid
        assert pid is not None
        service = asyncio.ensure_future(server.run())
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StoreDown, match="SIGKILL"):
            async with asyncio.timeout(20):
                await service
        await server.start()
        assert server.pid != pid
        assert await store.client.get("killed") == b"kept", "the client finds its way back"


async def test_the_password_is_needed_and_shows_nowhere(state_dir: Path) -> None:
    async with running(state_dir) as (server, _):
        password_file = state_dir / "valkey.password"
        password = password_file.read_text().strip()
        assert password_file.stat().st_mode & 0o777 == 0o600
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert server.pid is not None
        assert Path(f"/proc/{server.pid}").stat().st_uid != 0
        anonymous = RedisStore(server.url.replace(f":{password}@", ""), Redis(), None)
        with pytest.raises(AuthenticationError):
            await anonymous.ping()
        await anonymous.close()


async def test_a_second_hive_is_refused_instead_of_stealing_the_socket(state_dir: Path) -> None:
    async with running(state_dir) as (server, store):
        await store.client.set("mine", b"1")
        second = EmbeddedValkey(state_dir, Embedded())
        with pytest.raises(Conflict, match="in use by another hive"):
            await second.start()
        assert second.url == server.url
        assert await store.client.get("mine") == b"1"


async def test_a_torn_log_of_writes_is_read_to_the_tear(state_dir: Path) -> None:
    async with running(state_dir) as (_, store):
        for number in range(10):
            await store.client.set(f"key{number}", b"x" * 100)
    log = next((state_dir / "valkey" / "appendonlydir").glob("*.incr.aof"))
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 50)
    async with running(state_dir) as (_, store):
        assert await store.client.exists("key8") == 1
        assert await store.client.exists("key9") == 0


async def test_a_damaged_log_is_moved_aside(state_dir: Path) -> None:
    """Nothing in it is irreplaceable, so hive starts without it rather than not at all."""
    async with running(state_dir) as (_, store):
        for number in range(10):
            await store.client.set(f"key{number}", b"x" * 100)
    log = next((state_dir / "valkey" / "appendonlydir").glob("*.incr.aof"))
    log.write_bytes(b"garbage" + log.read_bytes()[7:])
    async with running(state_dir) as (_, store):
        assert await store.client.dbsize() == 0
    assert (state_dir / "valkey" / "appendonlydir.broken").is_dir()


async def test_full_memory_is_refused_as_a_store_that_is_away(state_dir: Path) -> None:
    server = EmbeddedValkey(state_dir, Embedded(valkey_max_memory_mb=2))
    try:
        store = await RedisStore.open(await server.start(), Redis())

        async def fill() -> None:
            for number in range(100):
                with store.translating("filling up"):
                    await store.client.set(f"key{number}", b"x" * 100_000)

        with pytest.raises(StoreDown, match="maxmemory"):
            await fill()
        await store.close()
    finally:
        await server.stop()


async def test_a_failure_to_start_is_told(state_dir: Path, tmp_path: Path) -> None:
    program = tmp_path / "valkey-server"
    program.write_text("#!/bin/sh\ncat /etc/passwd >/dev/full\n")
    program.chmod(0o755)
    with pytest.raises(StoresMissing, match="the disk is full"):
        await EmbeddedValkey(state_dir, Embedded(), program=program).start()
    program.write_text("#!/bin/sh\necho something odd >&2; exit 3\n")
    with pytest.raises(StoresMissing, match="something odd"):
        await EmbeddedValkey(state_dir, Embedded(), program=program).start()
