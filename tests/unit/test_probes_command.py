"""Probe files and the command that reads them, from the touch to the exit code."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import probes.command
from hive.testing.manual_clock import ManualClock
from probes.liveness import ProbeFiles


class Facts:
    def __init__(self) -> None:
        self.alive = {"pool light": True, "beat": True}
        self.ready = True


@pytest.fixture
def facts() -> Facts:
    return Facts()


@pytest.fixture
def files(tmp_path: Path, facts: Facts) -> ProbeFiles:
    return ProbeFiles(
        tmp_path,
        alive=lambda: facts.alive,
        ready=lambda: facts.ready,
        touch_seconds=15,
        clock=ManualClock(),
    )


def probe(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = probes.command.main(arguments, {})
    return code, "".join(capsys.readouterr()).strip()


def grow_old(path: Path, seconds: float) -> None:
    then = time.clock_gettime(time.CLOCK_REALTIME) - seconds
    os.utime(path, (then, then))


def test_fresh_files_pass_and_an_old_one_fails_with_its_name(
    tmp_path: Path, files: ProbeFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    state = f"--state={tmp_path}"
    files.run_once()
    assert probe(capsys, "live", state) == (0, "live")
    assert probe(capsys, "ready", state) == (0, "ready")
    assert probe(capsys, "live", "--service", "beat", state) == (0, "live beat")
    grow_old(tmp_path / "live" / "beat", 46)
    assert probe(capsys, "live", state) == (1, "not live: beat made no progress for 46 s")
    assert probe(capsys, "live", state, "--service=pool light") == (0, "live pool light")
    files.run_once()
    assert probe(capsys, "live", state)[0] == 0


def test_only_a_service_that_gets_on_is_touched(
    tmp_path: Path, files: ProbeFiles, facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    files.run_once()
    facts.alive["beat"] = False
    for path in (tmp_path / "live").iterdir():
        grow_old(path, 60)
    files.run_once()
    code, said = probe(capsys, "live", f"--state={tmp_path}")
    assert (code, said) == (1, "not live: beat made no progress for 60 s")


def test_a_stopped_service_takes_its_file_along_and_unreadiness_its_own(
    tmp_path: Path, files: ProbeFiles, facts: Facts, capsys: pytest.CaptureFixture[str]
) -> None:
    files.run_once()
    del facts.alive["beat"]
    facts.ready = False
    files.run_once()
    state = f"--state={tmp_path}"
    assert probe(capsys, "live", state)[0] == 0
    assert probe(capsys, "live", "--service=beat", state) == (1, "not live: beat is not there")
    code, said = probe(capsys, "ready", state)
    assert code == 1
    assert said.startswith("not ready: ready is not there")


def test_what_an_earlier_boot_left_is_cleared(
    tmp_path: Path, files: ProbeFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    files.run_once()
    files.clear()
    assert probe(capsys, "live", f"--state={tmp_path}") == (1, f"not live: no hive runs on {tmp_path}")
    assert probe(capsys, "ready", f"--state={tmp_path}")[0] == 1
    files.clear()


def test_a_disk_that_refuses_does_not_stop_the_service(tmp_path: Path, facts: Facts) -> None:
    (tmp_path / "live").write_text("a file where the folder should be")
    files = ProbeFiles(
        tmp_path, alive=lambda: facts.alive, ready=lambda: True, touch_seconds=15, clock=ManualClock()
    )
    files.run_once()


@pytest.mark.parametrize(
    "arguments", [(), ("up",), ("ready", "--service=x"), ("live", "ready"), ("--state",)]
)
def test_wrong_calls_exit_2(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    code, said = probe(capsys, *arguments)
    assert code == 2
    assert "usage: hive probe" in said


def test_a_service_name_is_no_path(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = probe(capsys, "live", "--service=../ready", f"--state={tmp_path}")
    assert (code, said) == (1, "not live: no service is named '../ready'")


def test_the_command_is_quick_and_imports_nothing_of_hive(tmp_path: Path, files: ProbeFiles) -> None:
    files.run_once()
    best = min(cost_of_probe(tmp_path) for _ in range(3))
    print(f"hive probe live: {best * 1000:.0f} ms of a processor")
    assert best < 0.3
    loaded = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys, probes.command as c; c.main(['live', '--state={tmp_path}']);"
            "print([m for m in sys.modules if m.split('.')[0] in {'hive', 'pydantic', 'structlog'}])",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.splitlines() == ["live", "[]"]


def cost_of_probe(state: Path) -> float:
    """The processor time of one call, which does not grow while other programs are at work."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-m", "probes.command", "live", "--state", str(state)],
        capture_output=True,
        text=True,
    )
    after = os.times()
    assert (done.returncode, done.stdout) == (0, "live\n"), done.stderr
    return after.children_user + after.children_system - before.children_user - before.children_system
