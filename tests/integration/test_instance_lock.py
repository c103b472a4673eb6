"""The state folder's lock, against real second processes."""

import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from supervisor.instance import FolderInUse, FolderUnusable, Instance

HOLDER = """
import asyncio, os, sys
from pathlib import Path
from supervisor.instance import Instance
async def main():
    instance = await Instance.lock(Path(sys.argv[1]))
    child = os.fork() if len(sys.argv) > 2 else 1
    print(child if child else "", flush=True) if child else None
    sys.stdin.read()
asyncio.run(main())
"""


@pytest.fixture
def holder(tmp_path: Path):
    """Starts a process that holds the folder; ends it afterwards."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(tmp_path / "state"), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        process.first_line = process.stdout.readline()  # type: ignore[attr-defined]
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


async def test_a_second_hive_is_refused_with_the_pid_of_the_first(tmp_path: Path, holder) -> None:
    first = holder()
    with pytest.raises(FolderInUse, match=rf"another hive \(pid {first.pid}\)"):
        await Instance.lock(tmp_path / "state")
    # Refusing must not have taken the lock, nor the holder's name, from the holder.
    with pytest.raises(FolderInUse, match=str(first.pid)):
        await Instance.lock(tmp_path / "state")


async def test_a_killed_holder_leaves_the_folder_free_and_its_identity(tmp_path: Path, holder) -> None:
    first = holder()
    known = (tmp_path / "state" / "instance").read_text().strip()
    first.send_signal(signal.SIGKILL)
    first.wait()
    with anyio.fail_after(10):
        instance = await Instance.lock(tmp_path / "state")
    assert str(instance.id) == known
    assert (tmp_path / "state" / "hive.lock").read_text() == f"{os.getpid()}\n"
    instance.release()
    instance.release()


async def test_a_lock_that_lingers_in_a_dead_hives_child_is_waited_for(tmp_path: Path, holder) -> None:
    first = holder("with a child")
    child = int(first.first_line)
    first.send_signal(signal.SIGKILL)
    first.wait()
    with pytest.raises(FolderInUse, match=f"pid {first.pid}"):
        await Instance.lock(tmp_path / "state", linger_seconds=0.1)
    async with anyio.create_task_group() as group:
        taken: list[Instance] = []

        async def take() -> None:
            taken.append(await Instance.lock(tmp_path / "state"))

        group.start_soon(take)
        await anyio.lowlevel.checkpoint()
        os.kill(child, signal.SIGKILL)
    taken[0].release()


async def test_an_executed_program_does_not_inherit_the_lock(tmp_path: Path) -> None:
    instance = await Instance.lock(tmp_path / "state")
    program = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        instance.release()
        again = await Instance.lock(tmp_path / "state", linger_seconds=0)
        again.release()
    finally:
        program.kill()
        program.wait()


async def test_the_folder_and_what_identifies_it_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "state"
    instance = await Instance.lock(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("hive.lock", "instance"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    instance.release()
    again = await Instance.lock(folder)
    assert again.id == instance.id
    again.release()


async def test_a_folder_that_is_none_is_named_with_the_systems_reason(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file")
    with pytest.raises(FolderUnusable, match=re.escape(str(tmp_path / "state")) + ".*File exists"):
        await Instance.lock(tmp_path / "state")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
async def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "instance.new").symlink_to("/dev/full")
    with pytest.raises(FolderUnusable, match="No space left on device"):
        await Instance.lock(tmp_path / "state")
    (tmp_path / "state" / "instance.new").unlink()
    instance = await Instance.lock(tmp_path / "state", linger_seconds=0)  # the failed try holds nothing
    instance.release()


async def test_an_id_file_that_was_cut_off_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "instance").write_text("")
    instance = await Instance.lock(tmp_path / "state")
    assert (tmp_path / "state" / "instance").read_text() == f"{instance.id}\n"
    instance.release()
