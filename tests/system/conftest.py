"""Real hives and real documents for the tests that look from outside."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hive_process import HiveProcess

DOC_PACKAGE = "python3.11-doc"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.system)
            item.add_marker(pytest.mark.timeout(420))


@pytest.fixture
def new_hive(tmp_path: Path) -> Iterator[Callable[..., HiveProcess]]:
    """Makes hives on state folders of their own, and ends them with the test."""
    made: list[HiveProcess] = []

    def make(name: str = "state", environment: dict[str, str] | None = None) -> HiveProcess:
        hive = HiveProcess(tmp_path / name, environment)
        made.append(hive)
        return hive

    yield make
    for hive in made:
        hive.end()


@pytest.fixture
def hive(new_hive: Callable[..., HiveProcess]) -> HiveProcess:
    """A hive that is ready."""
    made = new_hive()
    made.start()
    return made


@pytest.fixture(scope="session")
def python_docs() -> Path:
    """The HTML pages of Debian's python3.11-doc: about 500. Unpacked once per machine, never installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME", "/var/tmp")) / "python3.11-doc-html"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several test processes may ask at once
        pages = cache / "usr/share/doc/python3.11/html"
        if not (pages / "library/asyncio-sync.html").exists():
            _unpack(cache)
    return pages


def _unpack(cache: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        if os.environ.get("CI"):
            pytest.fail(f"no apt-get here to fetch {DOC_PACKAGE} with")
        pytest.skip(f"no apt-get here to fetch {DOC_PACKAGE} with")
    fetch = ["apt-get", "download", "-qq", DOC_PACKAGE]
    if subprocess.run(fetch, cwd=cache, check=False).returncode != 0:
        subprocess.run(["apt-get", "update", "-qq"], check=False)
        subprocess.run(fetch, cwd=cache, check=True)
    package = next(cache.glob(f"{DOC_PACKAGE}_*.deb"))
    subprocess.run(["dpkg", "-x", str(package), str(cache)], check=True)
