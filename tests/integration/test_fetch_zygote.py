"""What a zygote weighs, and what it holds."""

import os
import select
import sys
from pathlib import Path

import pytest

from pools.fetch.zygote import Zygote, ZygoteGone

MIB = 2**20
IDLE_LIMIT = 25 * MIB


def proportional_bytes(pid: int) -> int:
    line = next(
        line for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() if line.startswith("Pss:")
    )
    return int(line.split()[1]) * 1024


@pytest.fixture
def zygote():
    started = Zygote.start()
    yield started
    started.stop()


def answer(zygote: Zygote) -> dict:
    assert select.select([zygote], [], [], 20)[0]
    (report,) = zygote.reports()
    return report


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may weigh an undumpable process")
def test_an_idle_zygote_is_light(zygote: Zygote) -> None:
    zygote.send({"op": "ping"})
    assert answer(zygote) == {"op": "pong", "loaded": False}
    weight = proportional_bytes(zygote.pid)
    print(f"\nidle zygote: {weight / MIB:.1f} MiB proportional")
    assert weight < IDLE_LIMIT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may read it")
def test_a_zygote_inherits_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIVE_SECRETS__KEY", "secret")
    zygote = Zygote.start()
    zygote.send({"op": "ping"})
    answer(zygote)
    environment = Path(f"/proc/{zygote.pid}/environ").read_bytes().split(b"\0")
    zygote.stop()
    assert {entry.partition(b"=")[0] for entry in environment if entry} <= {
        *(b"LD_LIBRARY_PATH", b"SSL_CERT_FILE", b"SSL_CERT_DIR", b"TZ"),
    }


def test_starting_one_blocks_nobody_and_leaves_the_signal_mask_alone(zygote: Zygote) -> None:
    import signal

    assert signal.SIGTERM not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_what_it_preloads_starts_no_thread_and_needs_no_settings_from_the_environment() -> None:
    """In a fresh interpreter: this one has imported everything long ago."""
    import subprocess

    program = (
        "import os, sys\n"
        "from pools.fetch.preload import load\n"
        "load()\n"
        "print(len(os.listdir('/proc/self/task')), 'lxml' in sys.modules, 'pypdf' in sys.modules,\n"
        "      'asyncpg' in sys.modules, 'redis' in sys.modules)\n"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.split() == ["1", "True", "True", "False", "False"]


def test_a_stopped_zygote_is_gone(zygote: Zygote) -> None:
    zygote.stop()
    assert zygote.ended
    with pytest.raises((ZygoteGone, OSError)):
        zygote.send({"op": "ping"})
