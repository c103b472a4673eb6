"""What goes wrong outside is said where the user looks, and nothing else stops."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hive_process import HiveProcess, until


def test_bad_documents_are_reported_and_the_rest_goes_on(hive: HiveProcess, tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "good.md").write_text("# Good\n\nA capybara swims.\n")
    (folder / "empty.md").write_text("")
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 64)
    (folder / "nul.txt").write_bytes(b"text with a \x00 byte and an ibex\n")
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 not really")
    (folder / "broken.docx").write_bytes(b"PK not a zip")
    with (folder / "huge.txt").open("wb") as huge:
        huge.truncate(200 * 1024 * 1024)
    connector = hive.json("connector", "add", "files", "--name", "mixed", "--path", str(folder))["id"]
    assert connector
    row = until(lambda: hive.attempt("mixed"), 60, "the attempt")
    waited = hive.run_cli("attempts", "--wait", str(row["id"]))
    assert waited.returncode == 0, waited.stderr
    assert "error" in waited.stderr.lower()
    row = hive.attempt("mixed")
    assert row is not None
    assert row["status"] == "completed_with_errors"
    assert len(hive.json("search", "capybara")) >= 1
    assert len(hive.json("search", "ibex")) >= 1
    shown = hive.cli("attempts", "--errors", str(row["id"]))
    for name in ("binary.txt", "broken.pdf", "broken.docx", "huge.txt"):
        assert name in shown


def test_impossible_sources_are_refused_or_fail_with_their_cause(hive: HiveProcess, tmp_path: Path) -> None:
    missing = hive.run_cli("connector", "add", "files", "--name", "gone", "--path", str(tmp_path / "nowhere"))
    assert missing.returncode != 0
    assert "nowhere" in missing.stderr
    inside = hive.run_cli("connector", "add", "files", "--name", "state", "--path", str(hive.state))
    assert inside.returncode != 0
    assert "state folder" in inside.stderr
    scheme = hive.run_cli("connector", "add", "web", "--name", "ftp", "--start", "ftp://example.org/")
    assert scheme.returncode != 0
    assert "start" in scheme.stderr
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]  # bound, not listening: connections are refused
        hive.cli(
            "connector",
            "add",
            "web",
            "--name",
            "off",
            "--start",
            f"http://127.0.0.1:{port}/",
            "--allow-private",
        )

        def cause() -> str | None:
            row = hive.attempt("off")
            return row and (
                row["error"] or (row["waiting_for"] if "next try" in str(row["waiting_for"]) else None)
            )

        assert str(port) in until(cause, 90, "a cause to show")
    assert hive.status_of("/readyz") == 200


def test_a_port_in_use(new_hive: Callable[..., HiveProcess]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        hive = new_hive(environment={"HIVE_HTTP__PORT": str(port)})
        hive.start(ready=False)
        assert hive.wait_exit(90) == 2
        assert str(port) in hive.log_text()
        assert "HIVE_HTTP__PORT" in hive.log_text()


def test_a_second_hive_on_the_same_state_folder(hive: HiveProcess) -> None:
    second = hive.run_cli("run", seconds=60)
    assert second.returncode == 2
    assert str(hive.pid) in second.stderr
    assert hive.status_of("/readyz") == 200


@pytest.mark.skipif(os.geteuid() != 0, reason="only a hive that is root runs its servers as another user")
def test_what_fails_both_embedded_servers_is_said_once(new_hive: Callable[..., HiveProcess]) -> None:
    hive = new_hive(environment={"HIVE_EMBEDDED__USER": "nobody-of-that-name"})
    hive.start(ready=False)
    assert hive.wait_exit(60) == 2
    assert "nobody-of-that-name" in hive.log_text()
    assert "Traceback" not in hive.log_text()


def test_wrong_addresses(new_hive: Callable[..., HiveProcess]) -> None:
    hive = new_hive(
        environment={
            "HIVE_POSTGRES__DSN": "postgresql://nobody:sesame@127.0.0.1:1/none",
            "HIVE_PROCESS__STORES_WAIT_SECONDS": "2",
        }
    )
    hive.start(ready=False)
    assert hive.wait_exit(60) == 3
    assert "sesame" not in hive.log_text()
    assert "postgres" in hive.log_text().lower()


def test_wrong_settings(new_hive: Callable[..., HiveProcess], tmp_path: Path) -> None:
    hive = new_hive()
    config = tmp_path / "bad.toml"
    config.write_text("[pools.light]\nslotz = 3\n")
    for command in (("run",), ("check",)):
        refused = hive.run_cli(*command, "--config", str(config))
        assert refused.returncode == 2
        assert "pools.light.slotz" in refused.stderr
        assert "Traceback" not in refused.stderr


def test_a_wrong_key_is_said(new_hive: Callable[..., HiveProcess]) -> None:
    hive = new_hive(environment={"HIVE_SECRETS__KEY": "not base64 of 32 bytes"})
    refused = hive.run_cli("run", seconds=90)
    assert refused.returncode == 2
    assert "HIVE_SECRETS__KEY" in refused.stderr or "secrets.key" in refused.stderr
