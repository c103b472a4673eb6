"""Fetch children as ``hive.ingest`` sees them: the implementation of ``FetchRunner``.

open ─▶ child ─▶ request ─▶ frames … ─▶ FetchDone | FetchFailed ─▶ exit
                                 └────▶ ChildDied: out of memory, signal, stalled, wall clock, error
"""

import os
import pwd
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from hive.clock import Clock
from hive.errors import ConfigurationError
from hive.events import Events
from hive.ingest.fetching import FetchDone, FetchFailed, FetchLimits, FetchRequest, Frame, Json
from hive.pulse import Pulse
from hive.settings import Fetch
from pools.children import ChildCall
from pools.fetch.birth import Birth
from pools.fetch.coding import Assembler, answer_frame, request_frame
from pools.fetch.custody import Bounds, Custody, custody
from pools.fetch.frames import FrameError, Kind, pack
from pools.fetch.hardening import User
from pools.fetch.nursery import Nursery
from pools.fetch.task_parent import run_in_child
from pools.fetch.zygote import Zygote

DATA_HEADROOM_BYTES: Final = 64 * 1024 * 1024
"""RLIMIT_DATA counts what is reserved (stacks of threads, say), sampling counts what is held: the first
stands a little higher, as the stop for growth faster than the samples."""


class FetchChildren:
    """Starts children: fetch children (``open``) and those of ``process=True`` tasks (``run_task``).

    ``run`` is a service that keeps the zygote alive; ``pulse`` is its. ``extra_connectors``: kind →
    "module:Class" for connectors outside the catalogue. ``hidden``: folders that no fetch child may read, the
    state folder above all. Raises ConfigurationError when ``settings.user`` does not exist.
    """

    def __init__(
        self,
        zygote: Zygote,
        settings: Fetch,
        events: Events,
        *,
        clock: Clock | None = None,
        extra_connectors: Mapping[str, str] | None = None,
        hidden: Sequence[Path] = (),
    ) -> None:
        self._nursery = Nursery(zygote, clock)
        self._events = events
        self._extra_connectors = dict(extra_connectors or {})
        self._hidden = tuple(str(folder.absolute()) for folder in hidden)
        self._user = _user(settings.user) if os.geteuid() == 0 else None

    @property
    def pulse(self) -> Pulse:
        """Beats when the zygote has answered."""
        return self._nursery.pulse

    @property
    def nursery(self) -> Nursery:
        """Where the children come from, for whoever counts them."""
        return self._nursery

    async def run(self) -> None:
        """Keep a zygote alive until cancelled; then end it and all children."""
        await self._nursery.run()

    @asynccontextmanager
    async def open(self, request: FetchRequest, limits: FetchLimits) -> AsyncGenerator["Session"]:
        """Start a child for ``request``. Raises Transient when none can be started now."""
        birth = Birth(
            role="fetch",
            user=self._user,
            max_data_bytes=limits.memory_bytes + DATA_HEADROOM_BYTES,
            hidden=self._hidden,
            preload=True,
        )
        bounds = Bounds(
            memory_bytes=limits.memory_bytes,
            stall_seconds=limits.stall_seconds,
            wall_seconds=limits.wall_seconds,
        )
        first = request_frame(request, self._extra_connectors.get(request.kind))
        async with custody(self._nursery, birth, first, bounds, self._events) as held:
            yield Session(held)

    async def run_task(self, call: ChildCall, *, hard_seconds: float | None) -> None:
        """Run one call of a ``process=True`` task to its end: see ``pools.children.ChildRunner``."""
        await run_in_child(self._nursery, self._events, call, hard_seconds)


class Session:
    """A running fetch child: see ``FetchSession``."""

    def __init__(self, held: Custody) -> None:
        self._held = held
        self._assembler = Assembler()

    @property
    def pid(self) -> int:
        return self._held.child.pid

    async def frames(self) -> AsyncIterator[Frame]:
        """Frames until FetchDone or FetchFailed. Raises ChildDied when the child ends in any other way."""
        while not self._held.finished:
            framed = await self._held.next()
            try:
                frame = self._assembler.accept(framed)
            except FrameError as error:
                await self._held.refuse(error)
            if frame is None:
                continue
            if isinstance(frame, (FetchDone, FetchFailed)):
                self._held.finished = True
            yield frame

    async def answer(self, known: Mapping[str, Mapping[str, Json]]) -> None:
        """Answer the last Question. Nothing happens if the child is gone: ``frames`` tells."""
        await self._held.stream.send(answer_frame(known))

    def stop_soon(self) -> None:
        """Ask the child to end at its next checkpoint."""
        self._held.stream.post(pack(Kind.STOP, None))


def _user(name: str) -> User | None:
    """Whom children become where hive is root; None for an empty name or root itself."""
    if not name:
        return None
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigurationError(
            f"fetch.user: there is no user {name!r} on this host",
            remedy='name one, or "" to run children as root',
        ) from None
    return None if entry.pw_uid == 0 else User(entry.pw_uid, entry.pw_gid)
