"""The listening socket and what it tells the command line."""

import asyncio
import json
import os
import socket
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web

from hive.errors import ConfigurationError
from hive.settings import Http
from supervisor.http.local_token import local_token
from supervisor.http.server import HttpServer


def application() -> web.Application:
    async def hello(request: web.Request) -> web.Response:
        return web.Response(text="hello")

    made = web.Application()
    made.router.add_get("/", hello)
    return made


async def test_it_serves_and_says_where(tmp_path: Path) -> None:
    server = HttpServer(application, Http(port=0), tmp_path)
    await server.start()
    try:
        place = tmp_path / "http.json"
        assert json.loads(place.read_text()) == {
            "host": "127.0.0.1",
            "port": server.port,
            "pid": os.getpid(),
        }
        assert place.stat().st_mode & 0o777 == 0o600
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{server.port}/") as answer,
        ):
            assert await answer.text() == "hello"
    finally:
        await server.stop()
    assert not place.exists()
    await server.stop()


async def test_as_a_service_it_ends_when_cancelled(tmp_path: Path) -> None:
    server = HttpServer(application, Http(port=0), tmp_path)
    await server.start()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(server.run())
        await asyncio.sleep(0)
        running.cancel()
    assert not (tmp_path / "http.json").exists()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", server.port)) != 0


async def test_as_a_service_it_is_over_once_running_requests_are(tmp_path: Path) -> None:
    entered, let_go = anyio.Event(), anyio.Event()

    async def slow(request: web.Request) -> web.Response:
        entered.set()
        await let_go.wait()
        return web.Response(text="done")

    def make() -> web.Application:
        made = web.Application()
        made.router.add_get("/", slow)
        return made

    server = HttpServer(make, Http(port=0), tmp_path)
    answers: list[str] = []
    over = anyio.Event()
    scope = anyio.CancelScope()

    async def service() -> None:
        with scope:
            await server.run()
        over.set()

    async def ask() -> None:
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{server.port}/") as answer,
        ):
            answers.append(await answer.text())

    async with anyio.create_task_group() as group:
        group.start_soon(service)
        await server.serving()
        group.start_soon(ask)
        await entered.wait()
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        assert not over.is_set()
        let_go.set()
    assert answers == ["done"]


async def test_a_port_in_use_is_a_configuration_error(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError) as refused:
            await HttpServer(application, Http(port=port), tmp_path).start()
    assert str(port) in str(refused.value)
    assert "HIVE_HTTP__PORT" in str(refused.value)
    assert not (tmp_path / "http.json").exists()


@pytest.mark.parametrize("host", ["203.0.113.7", "no.such.host.invalid"])
async def test_an_impossible_host_is_said(tmp_path: Path, host: str) -> None:
    with pytest.raises(ConfigurationError, match=host):
        await HttpServer(application, Http(host=host, port=0), tmp_path).start()


async def test_another_hives_announcement_is_left_alone(tmp_path: Path) -> None:
    server = HttpServer(application, Http(port=0), tmp_path)
    await server.start()
    other = json.dumps({"host": "127.0.0.1", "port": 1, "pid": os.getpid() + 1})
    (tmp_path / "http.json").write_text(other)
    await server.stop()
    assert (tmp_path / "http.json").read_text() == other


def test_the_token_is_made_once_and_kept_secret(tmp_path: Path) -> None:
    token = local_token(tmp_path)
    file = tmp_path / "token"
    assert file.stat().st_mode & 0o777 == 0o600
    file.chmod(0o644)
    assert local_token(tmp_path) == token
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_empty_token_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").touch()
    with pytest.raises(ConfigurationError, match="token"):
        local_token(tmp_path)
