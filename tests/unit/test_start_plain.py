"""`hive run` reads a plain command line by itself, and loads no more than it needs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from supervisor.start import Plain, plain


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("", Plain()),
        ("--demo", Plain(demo=True)),
        ("--state a --config=b.toml --port 0", Plain(state="a", config="b.toml", port=0)),
        ("--port=8421 --demo --state=x=y", Plain(state="x=y", port=8421, demo=True)),
        ("--state a --state b", Plain(state="b")),
    ],
)
def test_a_plain_line_is_read(line: str, options: Plain) -> None:
    assert plain(line.split()) == options


@pytest.mark.parametrize(
    "line",
    [
        *("--help", "-h", "--wrong", "word", "--", "--demo=1", "--stat a"),
        *("--state", "--state=", "--state --demo", "--config -x"),
        *("--port x", "--port 65536", "--port -1", "--port=", "--port ²", "--port 1.5"),
    ],
)
def test_all_others_are_left_to_click(line: str) -> None:
    assert plain(line.split()) is None


_RUN = """
import json, sys
sys.argv = ["hive", "run", "--state", sys.argv[1], "--port", "0"]
from supervisor.main import main
try:
    main()
except SystemExit as ended:
    print(json.dumps([ended.code, sorted(sys.modules)]))
"""


def test_a_run_holds_neither_click_nor_rich_nor_what_only_children_use(tmp_path: Path) -> None:
    """It gets as far as the stores, which are away; all its code is loaded by then."""
    ended = subprocess.run(
        [sys.executable, "-c", _RUN, str(tmp_path / "state")],
        env={
            "PATH": "/usr/bin:/bin",
            "HIVE_POSTGRES__DSN": "postgresql://nobody@127.0.0.1:1/none",
            "HIVE_REDIS__ENABLED": "false",
            "HIVE_PROCESS__STORES_WAIT_SECONDS": "0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    code, modules = json.loads(ended.stdout.splitlines()[-1])
    assert code == 3, ended.stderr
    assert "error: Postgres did not answer" in ended.stderr
    assert "supervisor.assembly" in modules
    unwanted = {"alembic", "click", "docx", "lxml", "numpy", "pygments", "pypdf", "rich", "sqlalchemy"}
    assert unwanted.isdisjoint(modules)
