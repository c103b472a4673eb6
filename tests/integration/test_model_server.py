"""The model server as a process: its protocol, its limits, and its end."""

import base64
import json
import math
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from model_process import SCRIPT, ModelProcess


class UnixConnection(HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("model", timeout=30)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(30)
        self.sock.connect(self._path)


@pytest.fixture(scope="module")
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    path = str(tmp_path_factory.mktemp("model") / "model.sock")
    with ModelProcess("--uds", path, "--max-waiting", "2"):
        yield path


def call(path: str, method: str, url: str, body: Any = None) -> tuple[int, dict[str, str], Any]:
    connection = UnixConnection(path)
    try:
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request(method, url, data, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, dict(response.headers), json.loads(response.read())
    finally:
        connection.close()


def embed(path: str, **body: Any) -> tuple[int, Any]:
    status, _, answer = call(path, "POST", "/v1/embeddings", body)
    return status, answer


def test_both_forms_hold_the_same_unit_vectors_in_order(socket_path: str) -> None:
    texts = ["a semaphore guards a resource", "honey", "  \n ", "word " * 3000, "honey"]
    status, floats = embed(socket_path, input=texts, model="wordllama-256")
    assert status == 200
    assert [entry["index"] for entry in floats["data"]] == [0, 1, 2, 3, 4]
    _, packed = embed(socket_path, input=texts, encoding_format="base64")
    for one, other in zip(floats["data"], packed["data"], strict=True):
        unpacked = struct.unpack("<256f", base64.b64decode(other["embedding"]))
        assert one["embedding"] == pytest.approx(unpacked)
        assert math.hypot(*unpacked) == pytest.approx(1, abs=1e-5)
    vectors = [entry["embedding"] for entry in floats["data"]]
    assert vectors[1] == pytest.approx(vectors[4], abs=1e-5)
    _, alone = embed(socket_path, input="honey")
    assert alone["data"][0]["embedding"] == pytest.approx(vectors[1], abs=1e-5)


def test_what_means_the_same_lies_near(socket_path: str) -> None:
    _, answer = embed(socket_path, input=["a kitten", "a small cat", "tax law"])
    kitten, cat, law = (entry["embedding"] for entry in answer["data"])

    def nearness(one: list[float], other: list[float]) -> float:
        return sum(a * b for a, b in zip(one, other, strict=True))

    assert nearness(kitten, cat) > nearness(kitten, law) + 0.2


@pytest.mark.parametrize(
    ("body", "status", "parameter"),
    [
        ({}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ""}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input"),
        ({"input": [1, 2]}, 400, "input"),
        ({"input": {"a": 1}}, 400, "input"),
        ({"input": "x" * 32_001}, 400, "input"),
        ({"input": ["x"] * 2049}, 400, "input"),
        ({"input": "a", "model": "gpt"}, 404, "model"),
        ({"input": "a", "dimensions": 64}, 400, "dimensions"),
        ({"input": "a", "encoding_format": "hex"}, 400, "encoding_format"),
        ([1], 400, None),
        (b"{", 400, None),
        (b"[" * 100_000, 400, None),
        (b" " * (32 * 1024 * 1024 + 1), 413, None),
    ],
)
def test_a_bad_request_is_answered_in_openais_shape(
    socket_path: str, body: Any, status: int, parameter: str | None
) -> None:
    answered, _, answer = call(socket_path, "POST", "/v1/embeddings", body)
    assert answered == status
    assert answer["error"]["param"] == parameter
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"]


def test_it_says_what_it_serves(socket_path: str) -> None:
    _, _, models = call(socket_path, "GET", "/v1/models")
    assert [entry["id"] for entry in models["data"]] == ["wordllama-256"]
    _, _, health = call(socket_path, "GET", "/healthz")
    assert (health["status"], health["dimension"]) == ("ok", 256)


def test_health_answers_and_the_overrun_are_refused_while_it_embeds(socket_path: str) -> None:
    body = {"input": ["some words to be embedded " * 1000] * 30, "encoding_format": "base64"}
    with ThreadPoolExecutor(12) as threads:
        calls = [threads.submit(call, socket_path, "POST", "/v1/embeddings", body) for _ in range(12)]
        healthy = 0
        while not all(each.done() for each in calls):
            call(socket_path, "GET", "/healthz")
            healthy += 1
        answers = [each.result() for each in calls]
    statuses = [status for status, _, _ in answers]
    assert set(statuses) == {200, 503}
    assert next(headers for status, headers, _ in answers if status == 503)["Retry-After"] == "1"
    print(f"{healthy} answers of health while {statuses.count(200)} calls embedded")
    assert healthy > 3 * statuses.count(200), "it waits for its turn among them"


def test_it_stays_small(socket_path: str) -> None:
    with ModelProcess("--port", "0") as model:
        pid = model.process.pid
        connection = HTTPConnection("127.0.0.1", int(model.listening.rsplit(":", 1)[1]), timeout=30)
        body = json.dumps({"input": ["some words to be embedded " * 45] * 64, "encoding_format": "base64"})
        for _ in range(10):
            connection.request("POST", "/v1/embeddings", body)
            assert len(connection.getresponse().read()) > 64 * 1024
        connection.close()
        status = Path(f"/proc/{pid}/status").read_text()
        resident = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        assert resident < 150 * 1024


def test_a_stopped_server_leaves_no_socket_and_ends_well(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    with ModelProcess("--uds", str(path)) as model:
        assert path.stat().st_mode & 0o777 == 0o700 & ~0o077
        model.process.send_signal(signal.SIGTERM)
        assert model.process.wait(timeout=10) == 0
        assert not path.exists()


def test_what_a_killed_server_left_does_not_block_the_next(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    with ModelProcess("--uds", str(path)) as model:
        model.process.kill()
        model.process.wait(timeout=10)
    assert path.exists()
    with ModelProcess("--uds", str(path)):
        assert embed(str(path), input="a")[0] == 200


def test_a_second_server_does_not_steal_the_socket(tmp_path: Path) -> None:
    path = tmp_path / "model.sock"
    with ModelProcess("--uds", str(path)):
        with pytest.raises(AssertionError, match="ended with 1"):
            ModelProcess("--uds", str(path)).__enter__()
        assert embed(str(path), input="a")[0] == 200


def test_it_dies_with_the_process_that_started_it() -> None:
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time\n"
            f"command = [sys.executable, {str(SCRIPT)!r}, '--port', '0']\n"
            "child = subprocess.Popen(command, stdout=subprocess.PIPE)\n"
            "child.stdout.readline()\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(600)\n",
        ],
        stdout=subprocess.PIPE,
    )
    assert starter.stdout is not None
    pid = int(starter.stdout.readline())
    handle = os.pidfd_open(pid)
    starter.kill()
    starter.wait(timeout=10)
    starter.stdout.close()
    ended, _, _ = select.select([handle], [], [], 10)
    os.close(handle)
    assert ended
