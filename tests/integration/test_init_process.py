"""PID 1's duties, by a process that is made a subreaper and so inherits orphans as PID 1 does."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

AS_INIT = """
import ctypes, os, signal, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)   # PR_SET_CHILD_SUBREAPER
from supervisor.reaper import become_init
become_init()
"""


def run(script: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", AS_INIT + script], capture_output=True, text=True, timeout=60
    )


def test_the_exit_code_is_hives_own() -> None:
    assert run("sys.exit(3)").returncode == 3
    assert run("sys.exit(0)").returncode == 0
    assert run("os.kill(os.getpid(), signal.SIGKILL)").returncode == 128 + signal.SIGKILL


def test_orphans_are_reaped_and_hives_own_children_are_left_to_hive() -> None:
    done = run(
        """
# Thirty orphans that end at once, while hive's own child ends too and is asked for its status much later.
own = subprocess.Popen(["sh", "-c", "exit 7"])
for _ in range(30):
    subprocess.run(["sh", "-c", "sh -c 'exit 0' & echo"], stdout=subprocess.DEVNULL, check=True)
init = os.getppid()

def others_of(parent):  # those that run still too: each is a zombie for a moment, later
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and int(name) != os.getpid():
                found.append(name)
    return found

deadline = time.monotonic() + 20
while others_of(init) and time.monotonic() < deadline:
    time.sleep(0.01)
print("left", others_of(init), "own", own.wait())
"""
    )
    assert done.stdout == "left [] own 7\n", done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_hive_once(number: signal.Signals) -> None:
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            AS_INIT
            + f"""
seen = []
signal.signal({int(number)}, lambda *_: seen.append(1))
print("up", flush=True)
while not seen:
    signal.sigtimedwait([], 0.05)
signal.sigtimedwait([], 0.2)
print("seen", len(seen), flush=True)
sys.exit(0)
""",
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        # To the whole process group, as a terminal's Ctrl-C does.
        os.killpg(process.pid, number)
        assert process.stdout.read() == "seen 1\n"
        assert process.wait(20) == 0


@contextmanager
def outlived(last_seconds: float, orphan_seconds: float) -> Generator[tuple[subprocess.Popen[str], Path]]:
    """An init whose hive has ended with 3 and left somebody; that one's place in /proc."""
    script = AS_INIT.replace(
        "become_init()",
        f"import supervisor.reaper\nsupervisor.reaper.LAST_SECONDS = {last_seconds}\nbecome_init()",
    )
    script += f"""
orphan = subprocess.Popen(["sleep", "{orphan_seconds}"], stdout=subprocess.DEVNULL, start_new_session=True)
print(os.getpid(), orphan.pid, flush=True)
os._exit(3)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        hive, orphan = (Path("/proc") / pid for pid in process.stdout.readline().split())
        deadline = time.monotonic() + 20
        while hive.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        try:
            yield process, orphan
        finally:
            if orphan.exists():
                os.kill(int(orphan.name), signal.SIGKILL)


def test_those_who_outlive_hive_are_waited_for() -> None:
    with outlived(last_seconds=60, orphan_seconds=0.5) as (process, orphan):
        assert process.wait(20) == 3
        assert not orphan.exists()


def test_but_not_for_ever() -> None:
    with outlived(last_seconds=1, orphan_seconds=60) as (process, orphan):
        assert process.wait(20) == 3
        assert orphan.exists()


def test_and_not_beyond_a_second_signal_that_asks_for_the_end() -> None:
    with outlived(last_seconds=60, orphan_seconds=60) as (process, orphan):
        for number in (signal.SIGHUP, signal.SIGCONT, signal.SIGTERM):
            process.send_signal(number)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 3
        assert orphan.exists()


def test_elsewhere_than_at_pid_1_nothing_is_forked() -> None:
    script = "import os\nfrom supervisor.reaper import become_init_if_first\nbefore = os.getpid()\n"
    done = subprocess.run(
        [sys.executable, "-c", script + "become_init_if_first(); print(os.getpid() == before)"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "True\n"


def test_importing_it_brings_in_nothing_of_weight() -> None:
    script = "import sys, supervisor.reaper\nprint(sorted({m.split('.')[0] for m in sys.modules}"
    done = subprocess.run(
        [sys.executable, "-c", script + " & {'hive', 'anyio', 'asyncio', 'pydantic', 'threading'}))"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path("/"),
    )
    assert done.stdout == "[]\n", done.stderr
