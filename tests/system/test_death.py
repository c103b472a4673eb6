"""Promises 1, 2 and 6: killed, stopped and started again, nothing is lost, doubled or left behind."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from hive_process import HiveProcess, until
from pages import copy_pages


def rows(hive: HiveProcess, query: str) -> list[dict[str, Any]]:
    """Ask the hive's database directly."""

    async def ask() -> list[dict[str, Any]]:
        connection = await asyncpg.connect(hive.postgres_dsn())
        try:
            return [dict(row) for row in await connection.fetch(query)]
        finally:
            await connection.close()

    return asyncio.run(ask())


def _connect(hive: HiveProcess, pages: Path) -> int:
    return hive.json(
        "connector", "add", "files", "--name", "docs", "--path", str(pages), "--refresh-seconds", "0"
    )["id"]


def _documents(hive: HiveProcess) -> int:
    return rows(hive, "select count(*) as n from tenant_public.document")[0]["n"]


def _assert_exactly_once(hive: HiveProcess, pages: Path) -> None:
    expected = {page.as_uri() for page in pages.rglob("*.html")}
    failed = {row["document_id"] for row in rows(hive, "select document_id from tenant_public.index_error")}
    present = [row["source_id"] for row in rows(hive, "select source_id from tenant_public.document")]
    assert len(present) == len(set(present))
    assert set(present) == expected - failed
    assert len(failed) < 0.05 * len(expected)
    wrong = rows(
        hive,
        "select d.source_id, d.chunk_count, count(c.*) as n "
        "from tenant_public.document d left join tenant_public.chunk c on c.document = d.id "
        "group by d.id having count(c.*) <> d.chunk_count or count(c.*) <> count(distinct c.ordinal)",
    )
    assert wrong == []
    assert rows(hive, "select 1 from tenant_public.index_batch where status <> 'done'") == []
    assert (
        rows(hive, "select 1 from hive.job where state in ('pending', 'running') and queue like '%process%'")
        == []
    )


def test_killed_five_times_every_page_is_there_once(
    python_docs: Path, tmp_path: Path, new_hive: Callable[..., HiveProcess]
) -> None:
    pages = tmp_path / "html"
    count = len(copy_pages(python_docs, pages, lambda page: page.parts[0] in ("library", "c-api", "howto")))
    hive = new_hive()
    hive.start()
    _connect(hive, pages)
    attempt = until(lambda: hive.attempt("docs"), 30, "the attempt")["id"]
    for death in range(1, 6):
        goal = count * death // 8
        until(
            lambda: _documents(hive) >= goal or hive.attempt("docs")["status"] == "completed",  # type: ignore[index]
            120,
            f"{goal} documents",
        )
        hive.kill()
        started = time.monotonic()
        hive.start()
        assert time.monotonic() - started < 60
    hive.cli("attempts", "--wait", str(attempt), seconds=300)
    row = hive.attempt("docs")
    assert row is not None
    assert row["id"] == attempt, "the killed attempt itself must go on"
    _assert_exactly_once(hive, pages)
    assert hive.stop() == 0


def test_sigterm_in_the_middle_and_on_again(
    python_docs: Path, tmp_path: Path, new_hive: Callable[..., HiveProcess]
) -> None:
    pages = tmp_path / "html"
    count = len(copy_pages(python_docs, pages, lambda page: page.parts[0] == "library"))
    hive = new_hive()
    hive.start()
    _connect(hive, pages)
    attempt = until(lambda: hive.attempt("docs"), 30, "the attempt")["id"]
    until(lambda: _documents(hive) >= count // 6, 120, "some documents")
    begun = time.monotonic()
    assert hive.stop() == 0
    assert time.monotonic() - begun < 30
    hive.start()
    before = _documents(hive)
    assert 0 < before
    row = hive.attempt("docs")
    assert row is not None
    assert row["id"] == attempt
    hive.cli("attempts", "--wait", str(attempt), seconds=300)
    assert len(hive.json("attempts")) == 1
    _assert_exactly_once(hive, pages)
    burned = rows(hive, "select attempt, hive_crashes from hive.job where task = 'fetch_connector'")
    assert all(row["attempt"] == 1 and row["hive_crashes"] == 0 for row in burned), burned


def test_what_a_killed_hive_was_at_runs_again_at_once(
    new_hive: Callable[..., HiveProcess], tmp_path: Path
) -> None:
    """Not at the end of its lease. How soon is measured by the benchmarks."""
    starts = tmp_path / "starts"
    starts.touch()
    (tmp_path / "mytasks.py").write_text(
        "import asyncio, hive\n"
        "@hive.task(queue='scheduled_tasks')\n"
        "async def long(context: hive.Context) -> None:\n"
        f"    with open({str(starts)!r}, 'a') as starts:\n"
        "        starts.write(f'{context.attempt}\\n')\n"
        "    await asyncio.sleep(600)\n"
    )
    hive = new_hive(
        environment={
            "HIVE_PROCESS__MODULES": '["mytasks"]',
            "PYTHONPATH": str(tmp_path),
            "HIVE_LEASES__DELIVERY_SECONDS": "600",
        }
    )
    hive.start()
    hive.cli("enqueue", "long", "--json", "{}")
    until(lambda: starts.read_text() == "1\n", 30, "its start")
    hive.kill()
    hive.start()
    until(lambda: starts.read_text() == "1\n1\n", 60, "its second start, on the same attempt")


def test_a_stopped_hive_leaves_nothing_running(hive: HiveProcess) -> None:
    assert hive.stop() == 0
    assert not (hive.state / "http.json").exists()
    assert not (hive.state / "ready").exists()


def test_ctrl_c_on_a_terminal_reaches_the_whole_process_group_and_still_drains(hive: HiveProcess) -> None:
    os.killpg(hive.pid, signal.SIGINT)
    assert hive.wait_exit() == 0
    assert "away" not in hive.log_text()
    assert "service.failed" not in hive.log_text()


def test_a_killed_embedded_store_comes_back(hive: HiveProcess, tmp_path: Path) -> None:
    def child(word: str) -> int | None:
        asked = ["pgrep", "-P", str(hive.pid), "-f", word]
        found = subprocess.run(asked, capture_output=True, text=True).stdout.split()
        return int(found[0]) if found else None

    for word in ("postgres", "valkey"):
        victim = until(lambda: child(word), 10, word)
        os.kill(victim, signal.SIGKILL)
        until(lambda: hive.status_of("/readyz") != 200, 60, f"the loss of {word} is noticed")
        until(lambda: hive.status_of("/readyz") == 200, 60, f"{word} is back")
        assert hive.exit_code() is None
    folder = tmp_path / "after"
    folder.mkdir()
    (folder / "a.md").write_text("# After\n\nStill working: narwhal.\n")
    hive.cli("connector", "add", "files", "--name", "after", "--path", str(folder))
    row = until(lambda: hive.attempt("after"), 60, "an attempt")
    hive.cli("attempts", "--wait", str(row["id"]))
    assert len(hive.json("search", "narwhal")) == 1
