"""The threads that plain ``def`` handlers run in.

Our own, since the standard executor joins its threads when the interpreter ends, so that one stuck handler
would keep hive from exiting, and anyio's worker threads are not daemons either. How many there are follows
from the pool's slots: each call holds one.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue

Work = tuple[Callable[[], object], asyncio.Future[None], asyncio.AbstractEventLoop]


class Threads:
    """Daemon threads, made when needed and used again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._idle: list[SimpleQueue[Work | None]] = []
        self._made = 0

    def call(self, function: Callable[[], object]) -> asyncio.Future[None]:
        """Run ``function`` in a thread, with the caller's context variables.

        The future is done when the thread is; cancelling it does not interrupt the thread.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        inbox = self._idle.pop() if self._idle else self._new()
        context = contextvars.copy_context()
        inbox.put((lambda: context.run(function), done, loop))
        return done

    def close(self) -> None:
        """End the idle threads. Busy ones end with the process; nothing can end them earlier."""
        while self._idle:
            self._idle.pop().put(None)

    def _new(self) -> "SimpleQueue[Work | None]":
        inbox: SimpleQueue[Work | None] = SimpleQueue()
        self._made += 1
        threading.Thread(
            target=self._serve, args=(inbox,), name=f"{self._name}-{self._made}", daemon=True
        ).start()
        return inbox

    def _serve(self, inbox: "SimpleQueue[Work | None]") -> None:
        while (work := inbox.get()) is not None:
            function, done, loop = work
            error: BaseException | None = None
            try:
                function()
            except BaseException as raised:  # noqa: BLE001 - the runner judges it; the thread lives on
                error = raised
            try:
                loop.call_soon_threadsafe(self._deliver, inbox, done, error)
            except RuntimeError:
                return  # the loop is closed: hive is ending
            del work, function, done, error

    def _deliver(
        self, inbox: "SimpleQueue[Work | None]", done: asyncio.Future[None], error: BaseException | None
    ) -> None:
        self._idle.append(inbox)
        if done.done():
            return
        if error is None:
            done.set_result(None)
        elif isinstance(error, StopIteration):
            done.set_exception(RuntimeError("the handler raised StopIteration"))  # a future refuses it
        else:
            done.set_exception(error)
