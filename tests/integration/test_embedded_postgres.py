"""The embedded PostgreSQL, whatever happened to the hive before."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import asyncpg
import pytest

from embedded_stores import CHEAP, SETTINGS, query, running
from hive.embedded import EmbeddedPostgres, EmbeddedValkey
from hive.embedded.binaries import postgres_programs
from hive.embedded.folder import StoreFolder
from hive.errors import Conflict, StoreDown
from hive.settings import Redis
from hive.store.redis import RedisStore

# A hive that starts its stores, says so, and waits to be killed.
HOST = """
import asyncio, sys
from pathlib import Path
from hive.embedded import EmbeddedPostgres, EmbeddedValkey
from hive.settings import Embedded

async def main():
    postgres = EmbeddedPostgres(Path(sys.argv[1]), Embedded(postgres_shared_buffers_mb=16))
    valkey = EmbeddedValkey(Path(sys.argv[1]), Embedded())
    await postgres.start(); await valkey.start()
    print("started", postgres.pid, valkey.pid, flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def until_gone(*pids: int) -> None:
    async with asyncio.timeout(20):
        while any(alive(pid) for pid in pids):
            await asyncio.sleep(0.01)


async def test_data_outlives_a_restart_and_the_role_is_no_superuser(state_dir: Path) -> None:
    async with running(state_dir) as server:
        pid = server.pid
        assert pid is not None
        await query(server.dsn, "create table kept (a int)")
        await query(server.dsn, "insert into kept values (7)")
        assert await query(server.dsn, "select rolsuper from pg_roles where rolname = current_user") is False
        assert await query(server.dsn, "select '[1,2]'::hive_ext.vector operator(hive_ext.<->) '[1,2]'") == 0
        assert Path(f"/proc/{pid}").stat().st_uid != 0, (
            "PostgreSQL refuses root, and nothing else may need it"
        )
    assert not alive(pid)
    async with running(state_dir) as server:
        assert await query(server.dsn, "select a from kept") == 7


async def test_a_commit_that_does_not_wait_is_written_soon_after(state_dir: Path) -> None:
    async with running(state_dir) as server:
        connection = await asyncpg.connect(server.dsn)
        await connection.execute("create table claimed (a int); set synchronous_commit to off")
        took: list[float] = []
        for _ in range(9):  # each right after the log was written: it waits for the next time
            await connection.execute("insert into claimed values (1)")
            begun = time.monotonic()
            end = await connection.fetchval("select pg_current_wal_insert_lsn()::text")
            while not await connection.fetchval("select pg_current_wal_flush_lsn() >= $1::text::pg_lsn", end):
                await asyncio.sleep(0.001)
            took.append(time.monotonic() - begun)
        await connection.close()
    # The quickest: other programs may come between, but a slow writer is never quick.
    assert min(took[1:]) < 0.15, took


async def test_the_password_is_needed_and_shows_nowhere(state_dir: Path) -> None:
    async with running(state_dir) as server:
        password = (state_dir / "postgres.password").read_text().strip()
        assert (state_dir / "postgres.password").stat().st_mode & 0o777 == 0o600
        assert password not in Path(f"/proc/{server.pid}/cmdline").read_text()
        assert password not in Path(f"/proc/{server.pid}/environ").read_text()
        with pytest.raises(asyncpg.InvalidPasswordError):
            await asyncpg.connect(server.dsn.replace(password, "wrong"))
        with pytest.raises(asyncpg.InvalidAuthorizationSpecificationError):
            await asyncpg.connect(server.dsn.replace("//hive:", "//postgres:"))
    for file in state_dir.rglob("*"):
        if file.is_file() and file.suffix != ".password":
            assert password.encode() not in file.read_bytes(), file


async def test_the_server_gets_nothing_of_hives_environment(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIVE_SECRETS__KEY", "a-secret")
    async with running(state_dir) as server:
        assert "a-secret" not in Path(f"/proc/{server.pid}/environ").read_text()


async def test_a_second_hive_on_the_folder_is_refused(state_dir: Path) -> None:
    async with running(state_dir) as server:
        second = EmbeddedPostgres(state_dir, SETTINGS)
        with pytest.raises(Conflict, match="in use by another hive"):
            await second.start()
        assert second.dsn == server.dsn, "but it can tell the address"
        assert await query(server.dsn, "select 1") == 1


async def test_a_killed_server_is_noticed_and_started_again_with_its_data(state_dir: Path) -> None:
    async with running(state_dir) as server:
        await query(server.dsn, "create table kept as select 7 as a")
        pid = server.pid
        assert pid is not None
        service = asyncio.ensure_future(server.run())
        await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(StoreDown, match="SIGKILL"):
            async with asyncio.timeout(20):
                await service
        service = asyncio.ensure_future(server.run())  # what the service tree does
        async with asyncio.timeout(20):
            while server.pid is None or not await _answers(server.dsn):
                assert not service.done(), service
                await asyncio.sleep(0.01)
        assert await query(server.dsn, "select a from kept") == 7
        assert server.pid != pid
    async with asyncio.timeout(20):
        await service  # stopped on purpose: the service ends without an error


async def _answers(dsn: str) -> bool:
    try:
        return await query(dsn, "select 1") == 1
    except (OSError, asyncpg.PostgresError):
        return False


@pytest.mark.parametrize("place", ["plain", "with space, comma's and ünïcode", "x" * 120])
async def test_what_a_killed_hive_left_blocks_no_start(tmp_path: Path, place: str) -> None:
    """``kill -9`` of the parent, then a start at once, in a folder that only its owner may enter."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    state_dir = closed / place
    for round_number in (1, 2):
        with subprocess.Popen(
            [sys.executable, "-c", HOST, state_dir], stdout=subprocess.PIPE, text=True
        ) as host:
            assert host.stdout is not None
            started = next(line for line in host.stdout if line.startswith("started"))
            pids = [int(pid) for pid in started.split()[1:]]
            store = await RedisStore.open(EmbeddedValkey(state_dir, SETTINGS).url, Redis())
            await store.client.incr("kept")
            await store.close()
            await query(
                EmbeddedPostgres(state_dir, SETTINGS).dsn, "create table if not exists kept as select 7 as a"
            )
            host.kill()
        async with running(state_dir) as server:
            assert await query(server.dsn, "select a from kept") == 7
            valkey = EmbeddedValkey(state_dir, SETTINGS)
            try:
                store = await RedisStore.open(await valkey.start(), Redis())
                assert await store.client.get("kept") == str(round_number).encode()
                await store.close()
            finally:
                await valkey.stop()
        await until_gone(*pids)
    assert closed.stat().st_mode & 0o777 == 0o700, "modes of parents are not ours to change"
    assert tmp_path.stat().st_mode & 0o077 == 0


async def test_a_server_that_outlived_its_hive_is_ended(state_dir: Path) -> None:
    """As after a PDEATHSIG that never came: the server runs on, and its pid file is cut short."""
    async with running(state_dir) as server:
        await query(server.dsn, "create table kept as select 7 as a")
    data = state_dir / "postgres" / "data"
    owner = data.stat()
    command = [
        postgres_programs() / "postgres",
        "-D",
        data,
        "-c",
        "listen_addresses=",
        "-k",
        state_dir / "postgres",
    ]
    if os.geteuid() == 0:
        user = ["setpriv", f"--reuid={owner.st_uid}", f"--regid={owner.st_gid}", "--clear-groups"]
        command = [*user, "--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override", *command]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as stray:
        pid_file = data / "postmaster.pid"
        async with asyncio.timeout(20):
            while not pid_file.exists() or "ready" not in pid_file.read_text():
                await asyncio.sleep(0.01)
        pid_file.write_text("12")
        async with running(state_dir) as server:
            assert stray.poll() is not None
            assert await query(server.dsn, "select a from kept") == 7


@pytest.mark.parametrize("content", ["", "1\n", f"{os.getppid()}\n/elsewhere\n", "no number at all"])
async def test_a_stale_pid_file_does_not_block(state_dir: Path, content: str) -> None:
    """Its number may be a living process's by now, as is usual in a container that was started again."""
    async with running(state_dir):
        pass
    (state_dir / "postgres" / "data" / "postmaster.pid").write_text(content)
    sockets = StoreFolder(state_dir, "postgres").socket_folder()  # elsewhere, if the path is long
    sockets.mkdir(mode=0o700, exist_ok=True)
    (sockets / ".s.PGSQL.5432.lock").write_text(f"{os.getppid()}\n")
    async with running(state_dir) as server:
        assert await query(server.dsn, "select 1") == 1


async def test_a_creation_cut_short_is_begun_anew(state_dir: Path) -> None:
    half = state_dir / "postgres" / "data.new" / "base"
    half.mkdir(parents=True)
    (half.parent / "PG_VERSION").write_text("18\n")
    async with running(state_dir) as server:
        assert await query(server.dsn, "select 1") == 1
    assert not half.exists()


async def test_a_lost_password_is_replaced(state_dir: Path) -> None:
    async with running(state_dir) as server:
        await query(server.dsn, "create table kept as select 7 as a")
    (state_dir / "postgres.password").unlink()
    async with running(state_dir) as server:
        assert await query(server.dsn, "select a from kept") == 7


async def test_a_cancelled_start_leaves_no_server(state_dir: Path) -> None:
    server = EmbeddedPostgres(state_dir, SETTINGS, options=CHEAP)
    start = asyncio.ensure_future(server.start())
    async with asyncio.timeout(20):
        while not (state_dir / "postgres" / "data.new" / "base").exists():
            await asyncio.sleep(0.005)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    async with running(state_dir) as server:
        assert await query(server.dsn, "select 1") == 1
