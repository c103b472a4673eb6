import asyncio
import threading
from contextvars import ContextVar

import pytest

from pools.threads import Threads

word: ContextVar[str] = ContextVar("word", default="none")


@pytest.fixture
def threads():
    made = Threads("test")
    yield made
    made.close()


async def test_context_variables_cross_and_do_not_come_back(threads: Threads):
    seen: list[str] = []

    def handler() -> None:
        seen.append(word.get())
        word.set("changed")

    word.set("given")
    await threads.call(handler)
    assert seen == ["given"]
    assert word.get() == "given"


async def test_a_thread_is_used_again_and_never_keeps_the_process(threads: Threads):
    used: list[threading.Thread] = []
    for _ in range(3):
        await threads.call(lambda: used.append(threading.current_thread()))
    assert len(set(used)) == 1
    assert used[0].daemon


async def test_errors_come_out_and_the_thread_goes_on(threads: Threads):
    def fail(error: BaseException) -> None:
        raise error

    with pytest.raises(ValueError, match="bad"):
        await threads.call(lambda: fail(ValueError("bad")))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.call(lambda: fail(StopIteration()))
    with pytest.raises(asyncio.CancelledError):
        await threads.call(lambda: fail(asyncio.CancelledError()))
    caught: list[BaseException] = []
    try:
        await threads.call(lambda: fail(SystemExit(4)))
    except SystemExit as error:
        caught.append(error)
    assert len(caught) == 1
    await threads.call(lambda: None)


async def test_closing_ends_idle_threads():
    threads = Threads("closing")
    used: list[threading.Thread] = []
    await threads.call(lambda: used.append(threading.current_thread()))
    threads.close()
    used[0].join(20)
    assert not used[0].is_alive()
