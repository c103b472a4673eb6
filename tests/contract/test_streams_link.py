"""The connection that all stream scripts of a process share."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable

import anyio
import pytest
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import ResponseError

from hive.broker.stream_link import StreamLink
from hive.settings import Redis
from hive.store.redis import RedisStore

CALL_SECONDS = 1.5


@pytest.fixture
async def store(valkey_url: str) -> AsyncGenerator[RedisStore]:
    opened = await RedisStore.open(valkey_url, Redis(call_seconds=CALL_SECONDS))
    yield opened
    await opened.close()


async def test_everybody_gets_the_answer_to_his_own_question(store: RedisStore) -> None:
    """Whoever stops waiting takes nobody else's answer, and an error is an answer."""
    link = StreamLink(store)
    await link.call(("PING",))
    async with asyncio.TaskGroup() as group:
        asked = [group.create_task(link.call(("ECHO", str(n)))) for n in range(200)]
        wrong = group.create_task(_error_of(link.call(("ECHO",))))
        await asyncio.sleep(0)  # all are on their way
        for each in asked[::3]:
            each.cancel()
    assert "wrong number of arguments" in str(wrong.result())
    for n, each in enumerate(asked):
        assert each.cancelled() if n % 3 == 0 else each.result() == b"%d" % n
    assert await link.call(("ECHO", "last")) == b"last"
    assert await _connections(store) == 2  # the link's and the one that asks


async def test_an_answer_may_come_in_pieces(store: RedisStore) -> None:
    link = StreamLink(store)
    long = b"\r\n$-1\0" * 500_000
    both = await asyncio.gather(link.call(("ECHO", long)), link.call(("ECHO", "short")))
    assert both == [long, b"short"]


async def test_a_late_answer_is_nobodys(store: RedisStore) -> None:
    link = StreamLink(store)
    assert await link.call(("ECHO", "first")) == b"first"
    await store.client.execute_command("CLIENT", "PAUSE", str(round(CALL_SECONDS * 2000)), "ALL")
    clock = asyncio.get_running_loop().time
    began = clock()
    late = [_error_of(link.call(("ECHO", "late"))) for _ in range(3)]
    assert [type(each) for each in await asyncio.gather(*late)] == [TimeoutError] * 3
    assert CALL_SECONDS * 0.9 < clock() - began < CALL_SECONDS * 1.9
    with anyio.fail_after(10):
        answer = b""
        while not answer:
            try:
                answer = await link.call(("ECHO", "next"))
            except TimeoutError:
                continue
    assert answer == b"next"


async def test_a_closed_connection_is_made_again(store: RedisStore) -> None:
    link = StreamLink(store)
    for n in range(5):
        asked = asyncio.gather(*(link.call(("ECHO", str(n))) for _ in range(20)))
        await store.client.client_kill_filter(_type="normal", skipme=True)
        assert await asked == [b"%d" % n] * 20


async def test_it_closes_with_the_store(store: RedisStore, valkey_url: str) -> None:
    another = await RedisStore.open(valkey_url, Redis())
    await StreamLink(another).call(("PING",))
    assert await _connections(store) == 4
    await another.close()
    with anyio.fail_after(20):
        while await _connections(store) > 2:
            await asyncio.sleep(0.01)


async def test_nothing_is_opened_once_the_store_is_closed(store: RedisStore, valkey_url: str) -> None:
    """Neither by a call that closing cuts off, nor by one that connects, nor by a later one."""
    another = await RedisStore.open(valkey_url, Redis())
    link, fresh = StreamLink(another), StreamLink(another)
    await link.call(("PING",))
    async with asyncio.TaskGroup() as group:
        cut_off = group.create_task(_error_of(link.call(("XREAD", "BLOCK", 5_000, "STREAMS", "none", "$"))))
        connecting = group.create_task(_error_of(fresh.call(("PING",))))
        await asyncio.sleep(0)
        await another.close()
    errors = [cut_off.result(), connecting.result()]
    errors += [await _error_of(each.call(("PING",))) for each in (link, StreamLink(another))]
    assert [type(each) for each in errors] == [Disconnected] * 4
    with anyio.fail_after(20):
        while await _connections(store) > 2:
            await asyncio.sleep(0.01)


async def test_all_attempts_share_one_deadline(store: RedisStore) -> None:
    """Cut off late, while the server takes no new connection: what is left is too short for another."""
    link = StreamLink(store)
    await link.call(("PING",))
    clock = asyncio.get_running_loop().time
    await store.client.execute_command("CLIENT", "PAUSE", str(round(CALL_SECONDS * 2500)), "ALL")
    began = clock()
    async with asyncio.TaskGroup() as group:
        late = group.create_task(_error_of(link.call(("ECHO", "late"))))
        await asyncio.sleep(CALL_SECONDS * 0.8)
        assert link._line is not None
        link._line.connection.abort(Disconnected("cut off"))
    assert type(late.result()) is TimeoutError
    assert clock() - began < CALL_SECONDS * 1.7  # another attempt's would end at 1.8


async def _error_of(call: Awaitable[object]) -> Exception | None:
    try:
        await call
    except (TimeoutError, Disconnected, ResponseError) as error:
        return error
    return None


async def _connections(store: RedisStore) -> int:
    return sum(each["name"] == "hive" for each in await store.client.client_list())
