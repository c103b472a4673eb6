"""A pool of connections grows by one at a time, and by none while those it has come back."""

import asyncio
from collections import deque
from collections.abc import Callable

import pytest

from hive.store import growth
from hive.store.growth import GrowingPool


class Connection:
    def __init__(self, number: int) -> None:
        self.number = number
        self.closed = False


class Server:
    """asyncpg's pool, as far as it is asked. Connections are made when the test says so."""

    def __init__(self) -> None:
        self.lost: Callable[[Connection], None] | None = None
        self.idle: deque[Connection] = deque()
        self.size = 0
        self.asked: deque[asyncio.Future[None]] = deque()

    def get_size(self) -> int:
        return self.size

    def get_idle_size(self) -> int:
        return len(self.idle)

    async def acquire(self, *, timeout: float) -> Connection:
        del timeout
        if not self.idle:
            asked: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.asked.append(asked)
            await asked
            self.size += 1
            return Connection(self.size)
        return self.idle.pop()

    async def release(self, connection: Connection, *, timeout: float) -> None:
        del timeout
        if not connection.closed:
            self.idle.append(connection)

    def close(self, connection: Connection) -> None:
        connection.closed = True
        self.size -= 1
        if connection in self.idle:
            self.idle.remove(connection)
        assert self.lost is not None
        self.lost(connection)

    def make(self) -> None:
        self.asked.popleft().set_result(None)


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def pool(server: Server, monkeypatch: pytest.MonkeyPatch) -> GrowingPool:
    monkeypatch.setattr(growth, "RETURN_SECONDS", 60.0)
    monkeypatch.setattr(growth, "TURN_SECONDS", 60.0)
    pool = GrowingPool(server)  # type: ignore[arg-type]
    server.lost = pool.lost
    return pool


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def asking(pool: GrowingPool, group: asyncio.TaskGroup, count: int) -> list[asyncio.Task[Connection]]:
    return [group.create_task(pool.acquire(timeout_seconds=1.0)) for _ in range(count)]


async def test_a_herd_makes_one_and_shares_it(server: Server, pool: GrowingPool) -> None:
    async with asyncio.TaskGroup() as group:
        herd = asking(pool, group, 16)
        await turns()
        assert len(server.asked) == 1
        server.make()
        for place in range(16):
            await turns()
            assert [task.done() for task in herd] == [True] * (place + 1) + [False] * (15 - place)
            await pool.release(herd[place].result(), timeout_seconds=1.0)
    assert server.size == 1


async def test_one_that_does_not_come_back_is_not_waited_for(
    server: Server, pool: GrowingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "RETURN_SECONDS", 0.0)
    async with asyncio.TaskGroup() as group:
        first, second, third = asking(pool, group, 3)
        await turns()
        server.make()
        await turns()
        assert first.done()
        assert not second.done()
        assert len(server.asked) == 1  # the second's, while the third has its turn after it
        server.make()
        await turns()
        assert second.done()
        assert len(server.asked) == 1
        server.make()
    assert {task.result().number for task in (first, second, third)} == {1, 2, 3}


async def test_one_that_cannot_be_made_holds_nobody_up(
    server: Server, pool: GrowingPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "TURN_SECONDS", 0.0)
    monkeypatch.setattr(growth, "RETURN_SECONDS", 0.0)
    async with asyncio.TaskGroup() as group:
        stuck, other = asking(pool, group, 2)
        while len(server.asked) < 2:
            await asyncio.sleep(0)
        server.asked[1].set_result(None)
        await turns()
        assert other.done()
        assert not stuck.done()
        server.make()


async def test_who_is_cancelled_takes_no_others_turn(server: Server, pool: GrowingPool) -> None:
    async with asyncio.TaskGroup() as group:
        first, second, third = asking(pool, group, 3)
        await turns()
        server.make()
        await turns()
        second.cancel()
        await pool.release(first.result(), timeout_seconds=1.0)
        await turns()
        assert second.cancelled()
        assert third.result() is first.result()


@pytest.mark.parametrize("idle", [False, True])
async def test_lost_ones_are_made_anew_one_by_one(
    server: Server, pool: GrowingPool, monkeypatch: pytest.MonkeyPatch, idle: bool
) -> None:
    """Those in use as well as those that had come back: Postgres restarts, or a quiet time closes them."""
    with monkeypatch.context() as hasty:
        hasty.setattr(growth, "RETURN_SECONDS", 0.0)
        async with asyncio.TaskGroup() as group:
            first = asking(pool, group, 3)
            for _ in range(3):
                await turns()
                server.make()
    lost = [task.result() for task in first]
    for connection in lost:
        if not idle:
            server.close(connection)
        await pool.release(connection, timeout_seconds=1.0)
    if idle:
        for connection in lost:
            server.close(connection)
    async with asyncio.TaskGroup() as group:
        herd = asking(pool, group, 3)
        await turns()
        assert len(server.asked) == 1
        server.make()
        for task in herd:
            await turns()
            await pool.release(task.result(), timeout_seconds=1.0)
