"""Where children come from: keeps one zygote alive, spawns through it, and knows every child that lives.

    spawn ─▶ packet ─▶ zygote forks ─▶ `spawned` ─▶ Child ─▶ `exited` ─▶ Child.exited
                          │
                          └─ dies ─▶ every known group is killed, waiting spawns fail, ``run`` starts another

A service: ``run()`` starts the zygote anew when it dies or answers no more, and drops a fat one after some
time without children. ``pulse`` beats once for each answered ping.
"""

import asyncio
import os
import signal
import socket
from contextlib import suppress
from typing import Any, Final

from hive.backoff import Backoff
from hive.clock import Clock, SystemClock
from hive.errors import Transient
from hive.logger import get_logger
from hive.pulse import Pulse
from pools.fetch.birth import Birth, birth_message
from pools.fetch.exits import Ended, kernel_oom_kills
from pools.fetch.zygote import Zygote, ZygoteGone

log = get_logger(__name__)

PING_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = (
    30.0  # the first fetch child waits for imports: half a second, or many on a busy machine
)
IDLE_SECONDS: Final = 120.0  # a zygote that has loaded the parsers holds some 40 MB more than a fresh one
RESTART: Final = Backoff(first_seconds=0.05, max_seconds=5.0)


class Child:
    """A child as hive sees it. ``unsent``: what its socket did not take of the first frame.

    It is there before its process is: where hive is late, both its birth and its end may be heard of at once,
    before whoever asked for it has his turn.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.pid = 0
        self.connection = connection
        self.unsent = b""
        self.oom_kills_before = 0
        self.born: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exited: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """SIGKILL to the child and its process group, at once. Nothing when it has ended."""
        if not self.exited.done():
            kill_group(self.pid)


class _ZygoteLost(Transient):
    """The zygote ended in the middle of a request."""


def kill_group(pid: int) -> None:
    """SIGKILL ``pid`` and the group it leads: it may not have become a leader yet, so both are named."""
    for send in (os.kill, os.killpg):
        with suppress(ProcessLookupError, PermissionError):
            send(pid, signal.SIGKILL)


class Nursery:
    """Children on request. All methods belong to one event loop."""

    def __init__(self, zygote: Zygote, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._zygote = zygote
        self._watching = False
        self._down = False
        self._number = 0
        self._births: dict[int, Child] = {}
        self._children: dict[int, Child] = {}
        self._pong: asyncio.Future[None] | None = None
        self._change = asyncio.Event()
        self._up = asyncio.Event()
        self._loaded = False
        self._last_use = self._clock.monotonic()
        self.pulse = Pulse(self._clock, ANSWER_SECONDS)

    @property
    def zygote_pid(self) -> int:
        return self._zygote.pid

    @property
    def living(self) -> int:
        """How many children live."""
        return len(self._children)

    async def spawn(
        self, birth: Birth, first: bytes = b"", *, deadline_seconds: float = ANSWER_SECONDS
    ) -> Child:
        """A child in a session of its own, and a socket to it (non-blocking, the caller's to close).

        ``first``: its first frame, which lies in its socket before it is born, so that it need not wait.
        Waits for the zygote while it is started anew. Raises Transient when there is no child after
        ``deadline_seconds``. Cancelled: the child, if it came to be, is killed.
        """
        try:
            async with asyncio.timeout(deadline_seconds):
                while True:
                    try:
                        return await self._spawn(birth, first)
                    except _ZygoteLost:
                        continue
        except TimeoutError:
            raise Transient("no child process could be started in time") from None

    async def _spawn(self, birth: Birth, first: bytes) -> Child:
        self._watch()
        while self._down:
            await self._up.wait()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        ours.setblocking(False)
        self._number += 1
        number = self._number
        child = self._births[number] = Child(ours)
        try:
            with theirs:
                child.unsent = first[ours.send(first) :] if first else b""
                self._send(birth_message(number, birth), theirs.fileno())
            child.oom_kills_before = kernel_oom_kills()  # while the zygote is at work
            await child.born
        except BaseException:
            # Cancelled, refused, or the zygote is gone. A child that comes all the same is killed by
            # `spawned`, which finds nobody waiting; one that has come already, here.
            ours.close()
            if not child.born.cancel() and child.born.exception() is None:
                child.kill()
            raise
        finally:
            self._births.pop(number, None)
        return child

    async def run(self) -> None:
        """Keep a zygote at hand until cancelled; then end it and every child. Raises OSError if none can
        start.
        """
        failures = 0
        try:
            while True:
                healthy = await self.run_once()
                failures = 0 if healthy else failures + 1
                wait = PING_SECONDS if healthy else RESTART.delay(failures)
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        if healthy:
                            await self._change.wait()
                        else:
                            await asyncio.sleep(wait)
        finally:
            self.close()

    async def run_once(self) -> bool:
        """One round: a zygote is started if there is none, asked whether it is alive, or let go when
        unused.
        """
        self._watch()
        self._change.clear()
        idle = not self._children and not self._births
        if not self._down and idle and self._loaded and self._idle_seconds > IDLE_SECONDS:
            log.debug("zygote.released", pid=self._zygote.pid)
            self._lose(expected=True)
        if self._down:
            await self._replace()
        if not await self._ping():
            return False
        self.pulse.beat()
        return True

    def close(self) -> None:
        """Kill every child and end the zygote, at once and for good (``spawn`` or ``run`` start another)."""
        self._lose(expected=True)
        if not self._zygote.wait(1.0):
            self._zygote.kill()

    @property
    def _idle_seconds(self) -> float:
        return self._clock.monotonic() - self._last_use

    def _watch(self) -> None:
        """Have the loop read the zygote's reports, from the first use on."""
        if not self._watching and not self._down:
            asyncio.get_running_loop().add_reader(self._zygote.fileno(), self._read)
            self._watching = True
            self._up.set()

    def _send(self, message: dict[str, Any], descriptor: int | None = None) -> None:
        try:
            self._zygote.send(message, descriptor)
        except BlockingIOError:
            raise Transient("the zygote is too far behind to take another request") from None
        except ZygoteGone:
            self._lose()
            raise _ZygoteLost("the zygote has just ended and is being started anew") from None

    def _read(self) -> None:
        try:
            for report in self._zygote.reports():
                self._accept(report)
        except ZygoteGone:
            self._lose()

    def _accept(self, report: dict[str, Any]) -> None:
        match report:
            case {"op": "spawned", "id": int(number), "pid": int(pid)}:
                child = self._births.get(number)
                if child is None or child.born.done():
                    kill_group(pid)  # whoever asked for it was cancelled
                else:
                    child.pid = pid
                    self._children[number] = child
                    child.born.set_result(None)
            case {"op": "refused", "id": int(number), "error": str(error)}:
                child = self._births.get(number)
                if child is not None and not child.born.done():
                    child.born.set_exception(Transient(f"the system refused a child process: {error}"))
            case {"op": "exited", "id": int(number), "status": int(status), "peak_bytes": int(peak)}:
                self._bury(number, Ended(status=status, peak_bytes=peak))
            case {"op": "pong", "loaded": bool(loaded)}:
                self._loaded = loaded
                if self._pong is not None and not self._pong.done():
                    self._pong.set_result(None)
            case _:
                log.error("zygote.unknown_report", op=report.get("op"))

    def _bury(self, number: int, ended: Ended) -> None:
        child = self._children.pop(number, None)
        self._last_use = self._clock.monotonic()
        if child is not None and not child.exited.done():
            child.exited.set_result(ended)

    async def _ping(self) -> bool:
        pong = self._pong = asyncio.get_running_loop().create_future()
        try:
            self._send({"op": "ping"})
            async with asyncio.timeout(ANSWER_SECONDS):
                await pong
        except TimeoutError:
            log.error("zygote.silent", pid=self._zygote.pid, seconds=ANSWER_SECONDS)
            self._zygote.kill()
            self._lose()
            return False
        except Transient:
            return False
        return True

    def _lose(self, *, expected: bool = False) -> None:
        """The zygote is gone, or shall go: nothing of it may live on."""
        if self._down:
            return
        self._down = True
        self._up.clear()
        if self._watching:
            asyncio.get_running_loop().remove_reader(self._zygote.fileno())
            self._watching = False
        if not expected:
            log.error("zygote.died", pid=self._zygote.pid, children=len(self._children))
        self._zygote.end()
        for number, child in list(self._children.items()):
            child.kill()
            self._bury(number, Ended(status=None, peak_bytes=None))
        for child in self._births.values():
            if not child.born.done():
                child.born.set_exception(_ZygoteLost("the zygote ended before it had made a child"))
        if self._pong is not None and not self._pong.done():
            self._pong.set_exception(_ZygoteLost("the zygote has ended"))
        self._change.set()

    async def _replace(self) -> None:
        for _ in range(200):
            if self._zygote.ended:
                break
            await asyncio.sleep(0.005)
        else:
            self._zygote.kill()  # it hangs on a descendant that cannot be killed
        self._zygote = Zygote.start()
        self._down, self._loaded = False, False
        self._watch()
        log.info("zygote.started", pid=self._zygote.pid)
