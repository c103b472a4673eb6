"""One child from its first frame to its last breath: the part that fetch and task children share.

Leaving the context ends the child and its process group, whatever it is doing and however it is left; the
kill itself needs no await, so that no cancellation can come before it.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import anyio

from hive.events import Events, FetchExited
from hive.ingest.fetching import ChildDied
from hive.logger import get_logger
from hive.outcomes import ExitDetail
from pools.fetch.birth import Birth
from pools.fetch.exits import Evidence, describe, judge, kernel_oom_kills
from pools.fetch.frames import Framed, FrameError
from pools.fetch.nursery import Child, Nursery
from pools.fetch.stream import FrameStream, Stalled
from pools.fetch.watch import Watch

log = get_logger(__name__)

LEAVE_SECONDS: Final = 2.0  # a child that has said its last word exits by itself; this long it may take
GONE_SECONDS: Final = 5.0  # a killed process is gone in milliseconds, unless it hangs in the kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What ends a child; None: no such limit."""

    memory_bytes: int | None
    stall_seconds: float | None
    wall_seconds: float | None


class Custody:
    """A child in hand: its frames, and the judgement of its end."""

    def __init__(self, child: Child, bounds: Bounds) -> None:
        self.child = child
        self.stream = FrameStream(child.connection)
        self.finished = False  # its last frame has come
        self._bounds = bounds
        self._broken: str | None = None
        self._watch = Watch(child, max_bytes=bounds.memory_bytes, wall_seconds=bounds.wall_seconds)

    async def next(self) -> Framed:
        """Its next frame. Raises ChildDied when none comes: it died, stalled, or wrote what is no frame."""
        try:
            framed = await self.stream.next(self._bounds.stall_seconds)
        except Stalled:
            self._watch.kill("stalled")
            await self.died()
        except FrameError as error:
            await self.refuse(error)
        if framed is None:
            await self.died()
        return framed

    async def refuse(self, error: FrameError) -> NoReturn:
        """End the child, since what it said means nothing. Raises ChildDied."""
        self._broken = str(error)
        self._watch.kill("error")
        await self.died()

    async def died(self) -> NoReturn:
        """Wait for the child's end and raise ChildDied with its cause."""
        await self._gone(LEAVE_SECONDS)
        if not self.child.exited.done():
            self._watch.kill("error")  # it closed its socket and lives on: no use to anyone
            await self._gone(GONE_SECONDS)
        detail = self.detail()
        raise ChildDied(detail, self._broken or describe(detail))

    def detail(self) -> ExitDetail:
        """How it ended, as far as is known now."""
        if not self.child.exited.done():
            return ExitDetail(
                exit=self._watch.killed_for or "error", peak_memory_bytes=self._watch.peak_bytes
            )
        return judge(
            Evidence(
                ended=self.child.exited.result(),
                finished=self.finished,
                killed_for=self._watch.killed_for,
                peak_bytes=self._watch.peak_bytes,
                max_bytes=self._bounds.memory_bytes,
                oom_kills=kernel_oom_kills() - self.child.oom_kills_before,
            )
        )

    async def release(self) -> None:
        """End the child, unless it has ended, and wait for it: shielded and bounded."""
        if not self.finished:
            self._watch.kill("cancelled")
        self._watch.stop()
        try:
            with anyio.move_on_after(LEAVE_SECONDS, shield=True):
                await self._gone(None)
            self._watch.kill("error")
            with anyio.move_on_after(GONE_SECONDS, shield=True):
                await self._gone(None)
        finally:
            self._watch.kill("cancelled")
            self.stream.close()
        if not self.child.exited.done():
            log.error("child.cannot_be_killed", pid=self.child.pid)

    async def _gone(self, seconds: float | None) -> None:
        await asyncio.wait((self.child.exited,), timeout=seconds)


@asynccontextmanager
async def custody(
    nursery: Nursery, birth: Birth, first: bytes, bounds: Bounds, events: Events
) -> AsyncGenerator[Custody]:
    """A fresh child that has been sent its ``first`` frame, ended when the context is left.

    Raises Transient when none can be started.
    """
    child = await nursery.spawn(birth, first)
    held = Custody(child, bounds)
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        await held.stream.send(child.unsent)
        yield held
    finally:
        try:
            await held.release()
        finally:
            detail, seconds = held.detail(), loop.time() - started
            log.info(
                "child.exited", role=birth.role, pid=child.pid, exit=detail.exit, seconds=round(seconds, 3)
            )
            events.publish(
                FetchExited(exit=detail.exit, seconds=seconds, peak_memory_bytes=detail.peak_memory_bytes)
            )
