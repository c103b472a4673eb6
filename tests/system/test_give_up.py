"""Whoever waits for an attempt hears at once that its work was given up."""

import base64
import http.server
import json
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hive_process import HiveProcess, until


class Locking(http.server.BaseHTTPRequestHandler):
    """An embedding server that knows us when hive starts, and refuses our key from then on."""

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        if texts == ["hive"]:
            vector = base64.b64encode(struct.pack("<256f", 1.0, *[0.0] * 255)).decode()
            self._answer(200, {"data": [{"index": 0, "embedding": vector}]})
        else:
            self._answer(401, {"error": {"message": "unknown key"}})

    def _answer(self, status: int, body: object) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not worth a line each."""


@pytest.fixture
def locking() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Locking) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def test_an_attempt_ends_with_its_last_job_not_with_the_next_tick(
    locking: str, new_hive: Callable[..., HiveProcess], tmp_path: Path
) -> None:
    hive = new_hive(
        environment={
            "HIVE_EMBEDDING__URL": locking,
            "HIVE_SCHEDULES__CHECK_FOR_INDEXING": "3600",  # no tick will come along by itself
        }
    )
    hive.start()
    pages = tmp_path / "pages"
    pages.mkdir()
    (pages / "one.md").write_text("# One\n\nA capybara swims.\n")
    until(lambda: 'task="check_for_indexing"' in hive.text_of("/metrics"), 20, "the one tick of the start")
    hive.cli("connector", "add", "files", "--name", "locked", "--path", str(pages))
    row = until(lambda: hive.attempt("locked"), 20, "the attempt")
    waited = hive.run_cli("attempts", "--wait", str(row["id"]), seconds=30)
    assert waited.returncode != 0
    row = hive.attempt("locked")
    assert row is not None
    assert row["status"] == "failed"
    assert "unknown key" in row["error"]
