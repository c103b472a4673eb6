"""A fetch child: hears its request, gives up its rights, runs one connector, and exits.

The zygote forks it and calls ``main``. It holds its connector's credential and nothing else of hive's.
"""

import asyncio
import importlib
import os
import signal
import socket
from collections.abc import Iterator
from typing import Final, cast

from pydantic import BaseModel, ValidationError

from hive.errors import InvalidInput
from hive.ingest.connectors.catalogue import connector
from hive.ingest.connectors.files_config import FilesConfig
from hive.ingest.connectors.port import Connector
from hive.ingest.fetching import FetchFailed, FetchRequest
from pools.fetch.birth import Birth
from pools.fetch.channel import Channel
from pools.fetch.coding import frames_of, read_request, request_frame
from pools.fetch.confinement import confine, rehearse_confinement
from pools.fetch.crawl import Crawl, summary_of
from pools.fetch.exits import OUT_OF_MEMORY_STATUS
from pools.fetch.first_frame import expect, first_frame, quiet_standard_streams
from pools.fetch.frames import Kind, Unpacker

NICENESS: Final = 10
"""Crawling is work in the background: on a busy machine, hive's own loop and its leases go first.
Only from the connector on: hive waits for what comes before it."""


def main(connection: socket.socket, birth: Birth, zygote: int) -> int:
    """Run what hive asks for over ``connection``; the status to exit with."""
    quiet_standard_streams()
    framed, unpacker = first_frame(connection)
    try:
        request, extra = read_request(expect(framed, Kind.REQUEST))
        source, config = _connector(request, extra)
        confine(
            birth,
            zygote,
            must_read=_sources(config),
            may_read=_folders(config),
            hidden=_hidden(birth, config),
        )
    except (InvalidInput, ValidationError, ImportError, AttributeError) as error:
        return _give_up(connection, "invalid_config", summary_of(error))
    except OSError as error:
        return _give_up(
            connection,
            "cannot_change_user",
            f"a fetch child could not give up its rights: {error} (fetch.user names whom it becomes)",
        )
    os.nice(NICENESS)
    asyncio.run(_run(request, source, config, connection, unpacker))
    return 0


def rehearse() -> None:
    """Go once through what comes before a connector's first item: a failed crawl of no folder, for nobody.

    A forked process copies a page when it first writes to it. A spare child does it here, while it waits.
    """
    unpacker = Unpacker()
    unpacker.feed(request_frame(_REHEARSAL, None))
    framed = unpacker.next()
    assert framed is not None
    request, extra = read_request(expect(framed, Kind.REQUEST))
    source, config = _connector(request, extra)
    rehearse_confinement()
    ours, theirs = socket.socketpair()
    handler = signal.getsignal(signal.SIGTERM)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(_crawl(request, source, config, ours, unpacker))
    finally:
        loop.close()
        signal.signal(signal.SIGTERM, handler)  # the channel had taken it
        ours.close()
        theirs.close()


_REHEARSAL: Final = FetchRequest(
    kind="files",
    config={"path": "/nonexistent", "roots": ["/nonexistent"]},
    credential=None,
    checkpoint=None,
    batch_documents=1,
    batch_bytes=1024,
    max_document_bytes=1024,
    chunk_characters=1200,
    chunk_overlap_characters=0,
)


async def _crawl(
    request: FetchRequest, source: Connector, config: BaseModel, connection: socket.socket, unpacker: Unpacker
) -> None:
    channel = Channel(connection, unpacker)
    channel.open()
    items = source.items(config, request.credential, request.checkpoint, channel.known)
    await Crawl(request, channel).run(items)


async def _run(
    request: FetchRequest, source: Connector, config: BaseModel, connection: socket.socket, unpacker: Unpacker
) -> None:
    try:
        await _crawl(request, source, config, connection, unpacker)
    except MemoryError:
        os._exit(OUT_OF_MEMORY_STATUS)  # nothing here is to be trusted any more, the clean-up included
    # Everything is said. Threads of the connector that hang, open connections: none of it is worth waiting
    # for.
    os._exit(0)


def _connector(request: FetchRequest, extra: str | None) -> tuple[Connector, BaseModel]:
    if extra is None:
        source = connector(request.kind)
    else:
        module, _, name = extra.partition(":")
        source = cast(Connector, getattr(importlib.import_module(module), name)())
    return source, source.Config.model_validate(dict(request.config))


def _sources(config: BaseModel) -> tuple[str, ...]:
    """What it cannot do without, as far as the administrator's roots allow it at all."""
    if not isinstance(config, FilesConfig):
        return ()
    real = os.path.realpath(config.path)
    return tuple(
        config.path for root in _folders(config) if real == root or real.startswith(root.rstrip("/") + "/")
    )


def _folders(config: BaseModel) -> tuple[str, ...]:
    return tuple(map(os.path.realpath, config.roots)) if isinstance(config, FilesConfig) else ()


def _hidden(birth: Birth, config: BaseModel) -> tuple[str, ...]:
    return (*birth.hidden, *(config.refused if isinstance(config, FilesConfig) else ()))


def _give_up(connection: socket.socket, code: str, summary: str) -> int:
    frames: Iterator[bytes] = frames_of(FetchFailed(code=code, summary=summary, transient=False))
    for frame in frames:
        connection.sendall(frame)
    return 0
