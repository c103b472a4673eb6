"""One run of one connector: its items become batches, checkpoints and failures.

    connector ─items─▶ clean ─▶ split ─▶ encode ─▶ batch ─▶ frames
                                                     │
                        full, or a checkpoint ───────┘

A full batch waits for the next item before it is sent: if that is a checkpoint, the batch carries it, and
storing both is one transaction.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final, assert_never

from hive.ingest.cleaning import clean, clean_json
from hive.ingest.connectors.port import (
    Checkpoint,
    DocumentFailure,
    Item,
    Pause,
    SourceDocument,
    SourceError,
    Unchanged,
)
from hive.ingest.fetching import (
    CheckpointReached,
    DocumentFailed,
    FetchDone,
    FetchFailed,
    FetchRequest,
    Frame,
    ParsedDocument,
    Progressed,
)
from hive.ingest.splitting import content_hash, split
from pools.fetch.channel import Channel
from pools.fetch.coding import SUMMARY_CHARACTERS, EncodedDocument, batch_end_frame, frames_of
from pools.fetch.frames import Json

MOST_FAILURES: Final = 500  # in one batch; a folder of broken files must not pile up in the child
SIGN_OF_LIFE_SECONDS: Final = 1.0
LARGEST_REVISION: Final = 2**63 - 1  # a Postgres bigint
LARGEST_DOCUMENT: Final = 4
"""In sizes of a batch. Stored batches are compressed, and text shrinks to a quarter: what is larger than this
does not fit into one, or would fill hive's memory when it is unpacked."""
LARGEST_HEAD_BYTES: Final = 1024 * 1024  # of a document without its chunks, which hive decodes in one go


class Crawl:
    """Runs the connector's items to their end, or to a checkpoint once hive wants it to stop."""

    def __init__(self, request: FetchRequest, channel: Channel) -> None:
        self._request = request
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._documents: list[EncodedDocument] = []
        self._bytes = 0
        self._failures: list[DocumentFailed] = []
        self._unchanged = 0
        self._last_frame = self._loop.time()
        self._at_checkpoint = (
            True  # nothing came since the last one (or since the start): a good place to stop
        )
        self._task: asyncio.Task[object] | None = None  # set while the connector works

    async def run(self, items: AsyncIterator[Item]) -> None:
        """Send all that ``items`` yields; the last frame is FetchDone or FetchFailed.

        Only MemoryError comes out: the process is not to be trusted after it.
        """
        self._channel.on_stop = self._interrupt
        try:
            complete = await self._drain(items)
        except MemoryError:
            raise
        except SourceError as error:
            last: Frame = FetchFailed(
                code=clean(error.code, 100),
                summary=clean(str(error), SUMMARY_CHARACTERS),
                transient=error.transient,
                retry_after_seconds=error.retry_after_seconds,
            )
        except Exception as error:  # a connector's runner: its bugs are its source's failure
            if isinstance(error, ExceptionGroup) and error.subgroup(MemoryError) is not None:
                raise MemoryError from error
            last = FetchFailed(
                code="connector_error",
                summary=summary_of(error),
                transient=isinstance(error, (OSError, TimeoutError)),
            )
        else:
            last = FetchDone(complete=complete)
        await self._flush()
        await self._send(last)

    async def _drain(self, items: AsyncIterator[Item]) -> bool:
        """Whether the connector came to its end."""
        while True:
            if self._channel.stopping and self._at_checkpoint:
                return False
            # A connector that never waits would never let the loop hear of a wish to stop.
            await asyncio.sleep(0)
            self._task = asyncio.current_task()
            try:
                item = await anext(items, None)
            except asyncio.CancelledError:
                if not self._channel.stopping or self._task is None:
                    raise
                self._task.uncancel()
                return False
            finally:
                self._task = None
            if item is None:
                return True
            await self._take(item)
            if self._loop.time() - self._last_frame > SIGN_OF_LIFE_SECONDS:
                await self._send(Progressed())

    def _interrupt(self) -> None:
        """Hive wants us to stop: now if nothing is lost by it, else `_drain` does at the next checkpoint."""
        if self._task is not None and self._at_checkpoint and not self._channel.sending:
            self._task.cancel()

    async def _take(self, item: Item) -> None:
        match item:
            case SourceDocument():
                self._at_checkpoint = False
                await self._add(item)
            case DocumentFailure():
                self._at_checkpoint = False
                await self._fail(item.source_id, item.link, item.code, item.summary)
            case Unchanged():
                self._unchanged += item.count
            case Checkpoint():
                await self._checkpoint(clean_json(item.state))
                self._at_checkpoint = True
            case Pause():
                await self._send(Progressed(note=clean(item.note, SUMMARY_CHARACTERS)))
            case _:
                assert_never(item)

    async def _add(self, document: SourceDocument) -> None:
        try:
            encoded = EncodedDocument(self._parsed(document))
            self._check_size(encoded)
        except MemoryError:
            raise
        except _Refused as refused:
            await self._fail(document.source_id, document.link, refused.code, str(refused))
            return
        except Exception as error:  # noqa: BLE001 - one document's failure is no other's
            await self._fail(document.source_id, document.link, "unparsable", summary_of(error))
            return
        request = self._request
        full = len(self._documents) >= request.batch_documents
        if self._documents and (full or self._bytes + encoded.size > request.batch_bytes):
            await self._flush()
        self._documents.append(encoded)
        self._bytes += encoded.size

    def _check_size(self, encoded: EncodedDocument) -> None:
        limit = LARGEST_DOCUMENT * self._request.batch_bytes
        if encoded.size > limit:
            raise _Refused("too_large", f"its text takes {encoded.size} bytes, and {limit} is the most")
        if len(encoded.frames[0]) > LARGEST_HEAD_BYTES:
            raise _Refused("too_large", f"its title and metadata take more than {LARGEST_HEAD_BYTES} bytes")

    def _parsed(self, document: SourceDocument) -> ParsedDocument:
        sections = [
            replace(section, heading=clean(section.heading), anchor=clean(section.anchor))
            for section in document.sections
        ]
        document = replace(
            document,
            source_id=clean(document.source_id),
            title=clean(document.title),
            link=clean(document.link),
            sections=sections,
            metadata={clean(str(name)): clean(str(value)) for name, value in document.metadata.items()},
        )
        if document.revision is not None and abs(document.revision) > LARGEST_REVISION:
            raise _Refused("unparsable", f"its revision {document.revision} is no 64-bit number")
        request = self._request
        chunks = split(
            document, chunk_characters=request.chunk_characters, overlap=request.chunk_overlap_characters
        )
        if not chunks:
            raise _Refused("empty", "it has no text")
        return ParsedDocument(
            source_id=document.source_id,
            title=document.title,
            link=document.link,
            revision=document.revision,
            content_hash=content_hash(document, chunks),
            source_state=clean_json(document.source_state),
            metadata=document.metadata,
            chunks=chunks,
        )

    async def _fail(self, source_id: str, link: str, code: str, summary: str) -> None:
        self._failures.append(
            DocumentFailed(
                source_id=clean(source_id),
                link=clean(link),
                code=clean(code, 100),
                summary=clean(summary, SUMMARY_CHARACTERS),
            )
        )
        if len(self._failures) >= MOST_FAILURES:
            await self._flush()

    async def _checkpoint(self, state: Json) -> None:
        if self._documents:
            await self._flush(state)
            return
        reached = CheckpointReached(
            checkpoint=state, failures=tuple(self._failures), unchanged=self._unchanged
        )
        self._failures, self._unchanged = [], 0
        await self._send(reached)

    async def _flush(self, checkpoint: Json | None = None) -> None:
        """Send what has gathered since the last batch or checkpoint, if anything has."""
        if not (self._documents or self._failures or self._unchanged):
            return
        documents, failures, unchanged = self._documents, self._failures, self._unchanged
        self._documents, self._bytes, self._failures, self._unchanged = [], 0, [], 0
        for document in documents:
            await self._channel.send(*document.frames)
        await self._channel.send(batch_end_frame(len(documents), failures, checkpoint, unchanged))
        self._last_frame = self._loop.time()

    async def _send(self, frame: Frame) -> None:
        await self._channel.send(*frames_of(frame))
        self._last_frame = self._loop.time()


class _Refused(Exception):
    """A document that hive does not take, and why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def summary_of(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    return clean(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__, SUMMARY_CHARACTERS)
