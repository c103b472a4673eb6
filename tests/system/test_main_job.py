"""The main job, as a user sees it: real pages in, right answers out, and only what changed is done again."""

import functools
import http.server
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hive_process import HiveProcess, until
from pages import copy_pages


@pytest.fixture(scope="module")
def pages(python_docs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the pages that a test may edit."""
    target = tmp_path_factory.mktemp("docs") / "html"
    assert len(copy_pages(python_docs, target)) > 400
    return target


@pytest.fixture(scope="module")
def ingested(pages: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveProcess]:
    """A hive that has indexed all the pages once."""
    hive = HiveProcess(tmp_path_factory.mktemp("main") / "state")
    try:
        hive.start()
        hive.cli(
            "connector", "add", "files", "--name", "docs", "--path", str(pages), "--refresh-seconds", "0"
        )
        first = until(lambda: hive.attempt("docs"), 30, "the first attempt")
        hive.cli("attempts", "--wait", str(first["id"]), seconds=400)
        yield hive
    finally:
        hive.end()


def top(hive: HiveProcess, query: str, count: int = 3) -> list[str]:
    rows = hive.json("search", query)
    assert rows and {"title", "link", "snippet", "score"} <= set(rows[0])
    return [row["link"] for row in rows[:count]]


def test_every_page_is_indexed(ingested: HiveProcess, pages: Path) -> None:
    row = ingested.attempt("docs")
    assert row is not None
    assert row["status"] in ("completed", "completed_with_errors"), row
    assert row["documents_total"] >= len(list(pages.rglob("*.html"))) * 0.95
    assert row["documents_new"] == row["documents_total"]
    assert row["batches_done"] == row["batches_total"] > 0


def test_the_right_pages_are_found(ingested: HiveProcess) -> None:
    assert any("library/asyncio-sync.html" in link for link in top(ingested, "asyncio semaphore"))
    command_line = top(ingested, "parse command line options")
    assert any(name in link for link in command_line for name in ("argparse", "optparse", "getopt"))


def test_a_second_run_does_only_what_changed(ingested: HiveProcess, pages: Path) -> None:
    connector = next(row for row in ingested.json("connector", "list") if row["name"] == "docs")["id"]

    def again() -> dict[str, object]:
        attempt = ingested.json("connector", "run", str(connector))["attempt"]
        ingested.cli("attempts", "--wait", str(attempt), seconds=200)
        row = ingested.attempt("docs")
        assert row is not None
        assert row["id"] == attempt
        return row

    before = ingested.attempt("docs")
    assert before is not None
    unchanged = again()
    assert unchanged["documents_new"] == 0
    assert unchanged["documents_total"] == before["documents_total"]

    page = pages / "library" / "getopt.html"
    page.write_text(page.read_text().replace("</body>", "<p>quokka wombat</p></body>"))
    assert again()["documents_new"] == 1


def test_the_same_pages_over_http(python_docs: Path, new_hive: Callable[..., HiveProcess]) -> None:
    handler = functools.partial(QuietHandler, directory=str(python_docs))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            start = f"http://127.0.0.1:{server.server_port}/library/asyncio.html"
            hive = new_hive("web")
            hive.start()
            refused = hive.run_cli("connector", "add", "web", "--name", "closed", "--start", start)
            if refused.returncode == 0:  # resolved only when it is fetched: then the attempt says so
                row = until(
                    lambda: (found := hive.attempt("closed")) and found["status"] == "failed" and found,
                    60,
                    "refusal",
                )
                assert "private" in row["error"]
            else:
                assert "private" in refused.stderr
            hive.cli(
                "connector",
                "add",
                "web",
                "--name",
                "site",
                "--start",
                start,
                "--max-pages",
                "50",
                "--allow-private",
            )
            row = until(lambda: hive.attempt("site"), 30, "the attempt")
            hive.cli("attempts", "--wait", str(row["id"]), seconds=300)
            row = hive.attempt("site")
            assert row is not None
            assert row["documents_total"] == 50
            assert any("library/asyncio-sync.html" in link for link in top(hive, "asyncio semaphore"))
        finally:
            server.shutdown()
            thread.join()


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line each."""
