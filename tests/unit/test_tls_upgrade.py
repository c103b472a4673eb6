"""A connect to Postgres that is given up, at any moment, leaves no error behind."""

import asyncio
import gc
from typing import Any

import pytest

from hive.clock import SystemClock
from hive.errors import StoreDown
from hive.settings import Postgres
from hive.store.postgres import Database

TURNS = 20
"""More than a connect to this machine takes until it waits for the server's answer."""


async def _given_up(database: Database, turns: int) -> None:
    listening = asyncio.ensure_future(database.listen(["channel"], print))
    for _ in range(turns):
        await asyncio.sleep(0)
    listening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listening


async def test_a_connect_given_up_at_any_moment_is_no_error() -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    connected = 0

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected += 1
        await reader.read()
        writer.close()

    async with await asyncio.start_server(silent, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        database = _database(port)
        for turns in range(TURNS):
            await _given_up(database, turns)
            for _ in range(5):  # for the socket to close
                await asyncio.sleep(0)
            gc.collect()
    assert connected > TURNS // 2
    assert said == []


async def test_a_server_that_ends_instead_of_answering_is_told() -> None:
    async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(8)
        writer.close()

    async with await asyncio.start_server(rude, "127.0.0.1", 0) as server:
        with pytest.raises(StoreDown, match="connecting to listen"):
            await _database(server.sockets[0].getsockname()[1]).listen(["channel"], print)


def _database(port: int) -> Database:
    dsn = f"postgresql://hive:secret@127.0.0.1:{port}/hive"
    return Database(dsn, dsn, Postgres(), None, SystemClock())
