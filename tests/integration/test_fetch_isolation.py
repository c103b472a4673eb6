"""What a child can learn of hive: nothing."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fetch_harness import MIB, descriptors, request, running, text_of, warm
from hive.errors import ConfigurationError
from hive.ingest.fetching import BatchReady, FetchLimits, Frame, Question

AS_ROOT = os.geteuid() == 0
SECRET = "postgresql://only-hive-may-know"

SECRETIVE = """
import os, sys, time
from pools.fetch.hardening import make_undumpable
make_undumpable()
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def secretive() -> Iterator[int]:
    """A process that has what hive has: secrets in its environment and memory, and is undumpable."""
    process = subprocess.Popen(
        [sys.executable, "-c", SECRETIVE],
        env={**os.environ, "HIVE_POSTGRES__DSN": SECRET},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.fixture
def state_folder() -> Iterator[Path]:
    """A state folder with a key in it, outside /tmp, where children may write."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as name:
        folder = Path(name, "place", "state")
        folder.mkdir(parents=True)
        key = folder / "secret.key"
        key.write_text("the key")
        key.chmod(0o600)
        yield folder


async def test_a_child_can_learn_nothing_of_hive(
    secretive: int, state_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIVE_POSTGRES__DSN", SECRET)
    monkeypatch.setenv("UNRELATED", SECRET)
    async with running(hidden=(state_folder,)) as hive:
        frames = await hive.frames(["look", secretive, str(state_folder / "secret.key")])
    found = json.loads(text_of(frames, "look"))
    for what in ("environ", "mem", "maps", "descriptor", "ptrace", "file", "write"):
        assert found[what].startswith("refused"), (what, found[what])
    assert set(found["own_environ"]) <= {"LD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "TZ", "LC_CTYPE"}
    assert found["session"] is True
    assert found["core"] == [0, 0]
    if AS_ROOT:
        import pwd

        nobody = pwd.getpwnam("nobody")
        assert found["ids"] == [nobody.pw_uid, nobody.pw_uid, nobody.pw_gid, []]


async def test_a_child_has_no_descriptor_but_its_own() -> None:
    with tempfile.TemporaryFile() as secret:
        os.set_inheritable(secret.fileno(), True)  # even one that hive forgot to close on exec
        async with running() as hive:
            frames = await hive.frames(["look", 2**22, "/nonexistent"])
            zygote = descriptors(hive.children.nursery.zygote_pid)
    kinds = json.loads(text_of(frames, "look"))["descriptors"]
    # 0, 1, 2 (the last two are hive's standard error), its socket, and its event loop's own.
    assert kinds[:1] == ["/dev/null"] or "/dev/null" in kinds
    assert len(kinds) <= 8
    assert not any("(deleted)" in kind and "tmp" in kind for kind in kinds[:1])
    assert len(zygote) <= 7  # with the wire to the spare child


@pytest.mark.skipif(not AS_ROOT, reason="needs root: hive runs as root here")
class TestAsRoot:
    """A clone under /root, say: neither sources nor libraries can be read by the children's user."""

    @pytest.fixture
    def place(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir="/root" if Path("/root").is_dir() else None) as name:
            yield Path(name)

    async def files(self, hive: Any, path: Path, roots: list[Path], refused: list[Path]) -> list[Frame]:
        config = {
            "path": str(path),
            "roots": [str(root) for root in roots],
            "refused": [str(folder) for folder in refused],
        }
        limits = FetchLimits(memory_bytes=1024 * MIB, stall_seconds=30, wall_seconds=60)
        asked = request(kind="files", config=config)
        frames: list[Frame] = []
        async with hive.children.open(asked, limits) as session:
            async for frame in session.frames():
                frames.append(frame)
                if isinstance(frame, Question):
                    await session.answer({})
        return frames

    async def test_a_project_under_root_is_indexed(self, place: Path) -> None:
        project = place / "project"
        (project / "docs").mkdir(parents=True)
        (project / "README.md").write_text("# A project\n\nIts first paragraph.")
        (project / "docs" / "guide.html").write_text("<h1>Guide</h1><p>How to go on from here.</p>")
        (project / ".hive").mkdir()
        (project / ".hive" / "notes.md").write_text("the key")
        for path in (place, project, project / "docs"):
            path.chmod(0o700)
        async with warm() as hive:
            frames = await self.files(hive, project, [project], [project / ".hive"])
        names = {
            document.source_id.rpartition("/")[2]
            for frame in frames
            if isinstance(frame, BatchReady)
            for document in frame.documents
        }
        assert names == {"README.md", "guide.html"}

    async def test_the_right_to_read_it_reaches_no_further(self, place: Path) -> None:
        for name in ("inside", "outside"):
            (place / name).mkdir()
            (place / name / "file").write_text(name)
        place.chmod(0o700)
        steps = [["read", str(place / "inside" / "file")], ["read", str(place / "outside" / "file")]]
        async with warm() as hive:
            hive.children._extra_connectors["scripted"] = "fetch_connectors:ScriptedFiles"
            config = {"path": str(place / "inside"), "roots": [str(place / "inside")], "steps": steps}
            frames = await hive.frames(config=config)
        bodies = [
            document.chunks[0].body
            for frame in frames
            if isinstance(frame, BatchReady)
            for document in frame.documents
        ]
        assert bodies[0] == "got: 'inside'"
        assert bodies[1].startswith("refused")

    async def test_a_child_imports_what_it_needs_from_where_it_may_not_look(self, place: Path) -> None:
        package = place / "late_package"
        package.mkdir()
        (package / "__init__.py").write_text("from fetch_connectors import Scripted\n")
        (package / "lazy.py").write_text("")
        place.chmod(0o700)
        async with running() as hive:
            hive.children._extra_connectors["scripted"] = "late_package:Scripted"
            hive.zygote.send({"op": "path", "path": [str(place)]})
            frames = await hive.frames(["import", "late_package.lazy"], ["import", "encodings.idna"])
        bodies = [
            document.chunks[0].body
            for frame in frames
            if isinstance(frame, BatchReady)
            for document in frame.documents
        ]
        assert all(body.startswith("got:") for body in bodies), bodies

    async def test_the_user_can_be_kept(self) -> None:
        async with warm(user="") as hive:
            frames = await hive.frames(["look", 2**22, "/nonexistent"])
        assert json.loads(text_of(frames, "look"))["ids"][0] == 0

    async def test_an_unknown_user_is_refused(self) -> None:
        with pytest.raises(ConfigurationError, match=r"fetch\.user: there is no user 'no-such-user'"):
            async with warm(user="no-such-user"):
                pass

    async def test_no_run_as_root_where_the_user_cannot_be_changed(self) -> None:
        # As in a container whose user namespace knows only root.
        script = Path(__file__).parents[1] / "support" / "fetch_unprivileged.py"
        ran = await asyncio.create_subprocess_exec(
            *("setpriv", "--bounding-set", "-setuid,-setgid", sys.executable, str(script)),
            stdout=subprocess.PIPE,
        )
        said, _ = await ran.communicate()
        assert said.decode().splitlines()[-1] == "cannot_change_user"
