"""``process=True`` handlers in real children."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from fetch_harness import alive, until, warm
from hive.ingest.fetching import ChildDied
from hive.outcomes import ErrorKind
from pools.children import ChildCall, ChildTaskError


def call(function: str, **arguments: Any) -> ChildCall:
    return ChildCall(
        task="t",
        function=function if ":" in function else f"fetch_tasks:{function}",
        id="id",
        tenant="acme",
        attempt=2,
        idempotency_key="t:id",
        arguments=arguments,
    )


async def test_a_handler_runs_and_knows_who_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    async with warm() as hive:
        await hive.children.run_task(call("plain", path=str(tmp_path / "out")), hard_seconds=None)
    assert (tmp_path / "out").read_text() == "id acme 2 t:id"
    assert [exit.exit for exit in hive.exits] == ["clean"]
    assert "to standard output" not in capfd.readouterr().out


@pytest.mark.parametrize(
    ("what", "type_name", "summary", "transient", "kind"),
    [
        ("permanent", "Permanent", "no use", False, ErrorKind.PERMANENT),
        ("operator", "NeedsOperator", "a person must act", False, ErrorKind.NEEDS_OPERATOR),
        ("transient", "Transient", "later", True, None),
        ("throttled", "Throttled", "slow down", True, None),
        ("listed", "ConnectionResetError", "listed", True, None),
        ("unlisted", "ValueError", "bad value", False, None),
        ("exit", "SystemExit", "3", False, None),
    ],
)
async def test_an_error_crosses_the_border(
    what: str, type_name: str, summary: str, transient: bool, kind: ErrorKind | None
) -> None:
    async with warm() as hive:
        with pytest.raises(ChildTaskError) as raised:
            await hive.children.run_task(call("raises", what=what), hard_seconds=10)
    error = raised.value
    assert (error.type_name, error.summary, error.transient, error.kind) == (
        *(type_name, summary, transient, kind),
    )
    assert error.retry_after_seconds == (9 if what in ("transient", "throttled") else None)
    assert error.throttled == (what == "throttled")


@pytest.mark.parametrize(
    ("function", "type_name"),
    [
        ("no_such_module:f", "ModuleNotFoundError"),
        ("fetch_tasks:absent", "AttributeError"),
        ("fetch_tasks:wants_database", "AttributeError"),
        ("fetch_tasks:dies", "TypeError"),
    ],
)
async def test_what_cannot_run_says_why(function: str, type_name: str) -> None:
    async with warm() as hive:
        with pytest.raises(ChildTaskError) as raised:
            await hive.children.run_task(call(function), hard_seconds=10)
    assert raised.value.type_name == type_name
    if function.endswith("wants_database"):
        assert "no database" in raised.value.summary


@pytest.mark.parametrize(
    ("asked", "hard_seconds", "name"),
    [
        (call("dies", number=signal.SIGSEGV), None, "signal"),
        (call("hungry"), None, "out_of_memory"),
        (call("blocks", path="/dev/null"), 0.3, "wall_clock"),
    ],
)
async def test_a_death_is_named(asked: ChildCall, hard_seconds: float | None, name: str) -> None:
    async with warm() as hive:
        with pytest.raises(ChildDied) as raised:
            await hive.children.run_task(asked, hard_seconds=hard_seconds)
    assert raised.value.detail.exit == name


async def test_cancelling_kills_it(tmp_path: Path) -> None:
    out = tmp_path / "pid"

    def pid() -> int:
        return int(out.read_text() or 0) if out.exists() else 0

    async with warm() as hive, asyncio.TaskGroup() as group:
        running = group.create_task(hive.children.run_task(call("blocks", path=str(out)), hard_seconds=None))
        await until(lambda: pid() > 0)
        assert alive(pid())
        running.cancel()
    assert not alive(pid())
    assert hive.exits[-1].exit == "cancelled"
