"""What an embedded server is allowed: no more than it needs to reach its files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hive.embedded import privileges
from hive.embedded.privileges import Identity, launch_command
from hive.errors import ConfigurationError

SOMEBODY = Identity(name="somebody", uid=12345, gid=12345)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that everybody may run, below folders that nobody but the owner may enter (pytest's)."""
    path = tmp_path / "program"
    path.write_text("")
    path.chmod(0o755)
    return path


def allow(monkeypatch: pytest.MonkeyPatch, *held: int) -> None:
    monkeypatch.setattr(privileges, "_holds", lambda capability: capability in held)


def command(program: Path) -> str:
    return " ".join(launch_command(SOMEBODY, death_signal="INT", program=program, walks_to=()))


def test_within_reach_no_capability_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 1, 2)
    made = command(Path("/bin/sh"))
    assert "--ambient-caps=-all " in made
    assert "--bounding-set=-all " in made
    assert "--reuid 12345" in made
    assert "--pdeathsig INT" in made


def test_out_of_reach_the_weakest_one_serves(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 1, 2)
    assert "--ambient-caps=-all,+dac_read_search " in command(program)
    allow(monkeypatch, 1)  # Docker's default set
    assert "--ambient-caps=-all,+dac_override " in command(program)
    allow(monkeypatch)
    with pytest.raises(ConfigurationError, match="cannot reach"):
        command(program)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root hands capabilities on")
@pytest.mark.parametrize("mode", [0o755, 0o700])
def test_what_the_capability_opens_access_finds_too(program: Path, mode: int) -> None:
    """initdb asks ``access(2)`` for its ``postgres``; a clone under /root could create no cluster."""
    program.parent.chmod(0o700)
    program.chmod(mode)
    identity = Identity(name="daemon", uid=1, gid=1)
    launcher = launch_command(identity, death_signal="INT", program=program, walks_to=(Path(sys.executable),))
    asks = "import os, sys; sys.exit(0 if os.geteuid() == 1 and os.access(sys.argv[1], os.X_OK) else 9)"
    done = subprocess.run([*launcher, sys.executable, "-I", "-c", asks, program], check=False, timeout=30)
    assert done.returncode == 0


def test_a_program_for_its_owner_alone_needs_the_stronger_one(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program.chmod(0o700)
    allow(monkeypatch, 1, 2)
    assert "--ambient-caps=-all,+dac_override " in command(program)
    allow(monkeypatch, 2)
    with pytest.raises(ConfigurationError, match="cannot reach"):
        command(program)


def test_an_ordinary_user_changes_nothing_but_its_end(program: Path) -> None:
    made = launch_command(None, death_signal="TERM", program=program, walks_to=())
    assert made[1:] == ["--no-new-privs", "--pdeathsig", "TERM", "--"]


def test_without_setpriv_the_remedy_is_named(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(program.parent))
    with pytest.raises(ConfigurationError, match="util-linux"):
        command(program)


def test_root_without_the_right_to_switch_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    allow(monkeypatch)
    with pytest.raises(ConfigurationError, match="SETUID"):
        privileges.server_identity("daemon")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert privileges.server_identity("daemon") is None
