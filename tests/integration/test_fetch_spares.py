"""The child that is forked ahead: who gets it, and that it is never a burden."""

import os
import signal
import subprocess
import sys

from fetch_harness import Hive, alive, children_of, descriptors, idle, running, spare_of, until
from hive.ingest.fetching import FetchDone
from pools.fetch.birth import Birth


async def spare(hive: Hive) -> int:
    zygote = hive.children.nursery.zygote_pid
    await until(lambda: spare_of(zygote) is not None)
    found = spare_of(zygote)
    assert found is not None
    return found


async def test_the_next_child_is_the_one_forked_ahead() -> None:
    async with running() as hive:
        await hive.frames(["documents", 1])
        ahead = await spare(hive)
        async with hive.session(["documents", 1]) as session:
            assert session.pid == ahead
            assert isinstance([frame async for frame in session.frames()][-1], FetchDone)
        assert await spare(hive) != ahead


async def test_there_is_none_before_the_parsers_are_loaded() -> None:
    async with idle() as hive:
        child = await hive.children.nursery.spawn(Birth(role="task"))
        child.connection.close()  # nobody calls: it ends
        await child.exited
        assert await hive.children.nursery.run_once()
        assert children_of(hive.children.nursery.zygote_pid) == []


async def test_a_killed_one_costs_nobody_a_child() -> None:
    async with running() as hive:
        await hive.frames(["documents", 1])
        ahead = await spare(hive)
        os.kill(ahead, signal.SIGKILL)
        await until(lambda: not alive(ahead))
        assert isinstance((await hive.frames(["documents", 1]))[-1], FetchDone)
        ahead = await spare(hive)
        os.kill(ahead, signal.SIGSTOP)  # it cannot even see that it is asked for
        async with hive.session(["documents", 1]) as session:
            assert session.pid == ahead
        assert not alive(ahead)
        assert [exit.exit for exit in hive.exits] == ["clean", "clean", "cancelled"]


async def test_it_ends_with_its_zygote() -> None:
    async with running() as hive:
        await hive.frames(["documents", 1])
        ahead = await spare(hive)
        os.kill(hive.children.nursery.zygote_pid, signal.SIGKILL)
        await until(lambda: not alive(ahead))
        await hive.frames(["documents", 1])
        ahead = await spare(hive)
        hive.children.nursery.close()
        await until(lambda: not alive(ahead))


async def test_it_holds_nothing_of_the_zygotes() -> None:
    async with running() as hive:
        await hive.frames(["documents", 1])
        kinds = descriptors(await spare(hive))
    assert not kinds or len(kinds) == 4  # the standard streams and its wire
    assert not kinds or sum(kind.startswith("socket:") for kind in kinds) == 1


def test_a_rehearsal_leaves_nothing_behind() -> None:
    """In a process of its own: what it fails at, it would hide."""
    program = (
        "import os, signal\n"
        "from pools.fetch import child\n"
        "signal.signal(signal.SIGTERM, handler := lambda *_: None)\n"
        "before = sorted(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))\n"
        "child.rehearse()\n"
        "assert (sorted(os.listdir('/proc/self/fd')), len(os.listdir('/proc/self/task'))) == before\n"
        "assert signal.getsignal(signal.SIGTERM) is handler\n"
        "open('/dev/null', 'w').close()  # nothing is confined yet\n"
        "print('well')\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (said.stdout, said.stderr) == ("well\n", "")
