"""What the tests of fetch children share: a live set of them, requests, and a look at processes."""

import asyncio
import atexit
import contextlib
import os
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

from hive.events import Events, FetchExited
from hive.ingest.fetching import BatchReady, FetchLimits, FetchRequest, Frame
from hive.settings import Fetch
from pools.fetch.parent import FetchChildren, Session
from pools.fetch.spare import SPARE_NAME
from pools.fetch.zygote import Zygote

MIB = 1024 * 1024


class Hive:
    """The part of a hive that has children."""

    def __init__(self, zygote: Zygote | None = None, **fetch: Any) -> None:
        self.zygote = zygote or Zygote.start()
        self.exits: list[FetchExited] = []
        hidden = fetch.pop("hidden", ())
        events = Events()
        events.subscribe(FetchExited, self.exits.append)
        self.children = FetchChildren(
            self.zygote,
            Fetch(**fetch),
            events,
            extra_connectors={
                "scripted": "fetch_connectors:Scripted",
                "missing": "fetch_connectors:Missing",
            },
            hidden=hidden,
        )

    @contextlib.asynccontextmanager
    async def session(
        self,
        *steps: list[Any],
        memory_mb: int = 1024,
        stall_seconds: float = 30,
        wall_seconds: float = 60,
        **fields: Any,
    ) -> AsyncGenerator[Session]:
        """A session of the scripted connector, unless ``fields`` ask for another kind."""
        limits = FetchLimits(
            memory_bytes=memory_mb * MIB, stall_seconds=stall_seconds, wall_seconds=wall_seconds
        )
        async with self.children.open(request(*steps, **fields), limits) as session:
            yield session

    async def frames(self, *steps: list[Any], **fields: Any) -> list[Frame]:
        """All frames of such a session."""
        async with self.session(*steps, **fields) as session:
            return [frame async for frame in session.frames()]


def request(*steps: list[Any], **fields: Any) -> FetchRequest:
    """A request for the scripted connector with small batches."""
    given: dict[str, Any] = {
        "kind": "scripted",
        "config": {"steps": list(steps)},
        "credential": None,
        "checkpoint": None,
        "batch_documents": 4,
        "batch_bytes": 8 * MIB,
        "max_document_bytes": MIB,
        "chunk_characters": 1200,
        "chunk_overlap_characters": 0,
    }
    return FetchRequest(**(given | fields))


_warm: list[Zygote] = []


@contextlib.asynccontextmanager
async def warm(**fetch: Any) -> AsyncGenerator[Hive]:
    """A hive over a zygote that earlier tests have used: loading the parsers takes most of a second."""
    if not _warm:
        _warm.append(Zygote.start())
        atexit.register(_warm[0].stop)
    hive = Hive(_warm[0], **fetch)
    try:
        yield hive
        await until(lambda: hive.children.nursery.living == 0)
    finally:
        asyncio.get_running_loop().remove_reader(_warm[0].fileno())


@contextlib.asynccontextmanager
async def idle(**fetch: Any) -> AsyncGenerator[Hive]:
    """A hive with a zygote of its own, whose service the test drives itself."""
    hive = Hive(**fetch)
    try:
        yield hive
    finally:
        hive.children.nursery.close()


@contextlib.asynccontextmanager
async def running(**fetch: Any) -> AsyncGenerator[Hive]:
    """A hive with a zygote of its own, and the service that keeps it alive."""
    hive = Hive(**fetch)
    async with asyncio.TaskGroup() as group:
        service = group.create_task(hive.children.run())
        try:
            yield hive
        finally:
            service.cancel()


def text_of(frames: list[Frame], source_id: str) -> str:
    """The body of the document of that id."""
    return next(
        document.chunks[0].body
        for frame in frames
        if isinstance(frame, BatchReady)
        for document in frame.documents
        if document.source_id == source_id
    )


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


async def until(condition: Callable[[], bool], seconds: float = 10) -> float:
    """Wait until it holds; how long that took. Fails after ``seconds``."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, "it never came to be"
        await asyncio.sleep(0.002)
    return time.monotonic() - began


def descriptors(pid: int) -> list[str]:
    """What the descriptors of a process lead to; nothing where only root may look."""
    found: list[str] = []
    with contextlib.suppress(PermissionError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # the one that the listing itself uses
                found.append(os.readlink(entry))
    return sorted(found)


def name_of(pid: int) -> str:
    """What it calls itself; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def spare_of(zygote: int) -> int | None:
    """The child that waits to be asked for, once it does."""
    return next((pid for pid in children_of(zygote) if name_of(pid) == SPARE_NAME), None)


def busy_children_of(zygote: int) -> list[int]:
    """Children that somebody asked for, and zombies."""
    return [pid for pid in children_of(zygote) if pid != spare_of(zygote)]


def children_of(pid: int) -> list[int]:
    """Direct children, zombies included."""
    return [
        int(child)
        for thread in Path(f"/proc/{pid}/task").iterdir()
        for child in (thread / "children").read_text().split()
    ]
