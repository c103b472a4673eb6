"""The process job: one batch is embedded, then put into the index in one transaction with its own completion.

    batch ─▶ skip what is in force already ─▶ embed the rest (no database session held) ─▶ one transaction:
             job held ▸ batch locked ▸ documents locked, in order ▸ rows and chunks replaced ▸ batch done ▸
             attempt completed if this was its last ▸ job settled

Whatever dies in between leaves the batch as it was, and the next run does all of it again, once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import asyncpg

from hive.context import Context
from hive.errors import Transient
from hive.ids import AttemptId, BatchId, PairId
from hive.ingest import batches, document_errors, documents
from hive.ingest.completion import AttemptStatus, complete_if_finished, lock_attempt
from hive.ingest.documents import Brought, StoredDocument, hash_of
from hive.ingest.embedding import EmbeddingRefused
from hive.ingest.fetching import DocumentFailed, ParsedDocument
from hive.ingest.index.port import IndexedChunk, IndexedDocument, IndexSettings
from hive.ingest.services import IngestServices
from hive.ingest.versions import Version, may_replace, version_of
from hive.logger import get_logger
from hive.store.connection import Connection
from hive.vector import Vector

log = get_logger(__name__)

LONGEST_ID_BYTES = 2000  # a source id stands in a unique index, whose entries end at 2.7 kB


class TextChanged(Transient):
    """Another job changed a document between this job's reading and its writing."""

    code = "text_changed"


class WrongDimension(Transient):
    """The model server is not the one the index was built with."""

    code = "wrong_dimension"


class _Cancelled(Exception):
    """The attempt was cancelled meanwhile: nothing of this batch is to be kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    pair: PairId
    documents: Sequence[ParsedDocument]
    in_force: dict[str, StoredDocument]
    index: IndexSettings


@dataclass(slots=True, kw_only=True)
class _Work:
    """``vectors``: of every document that was embedded, one per chunk. ``failures`` grow on the way."""

    documents: list[ParsedDocument]
    vectors: dict[str, list[Vector]] = field(default_factory=dict[str, list[Vector]])
    failures: list[DocumentFailed] = field(default_factory=list[DocumentFailed])

    def drop(self, document: ParsedDocument, code: str, summary: str) -> None:
        """Leave ``document`` out, with its cause; the batch goes on."""
        self.documents.remove(document)
        self.failures.append(document_errors.failure(document, code, summary))


class ProcessJob:
    """One run of the process job of ``batch``."""

    def __init__(
        self, context: Context, services: IngestServices, attempt: AttemptId, batch: BatchId
    ) -> None:
        self._context = context
        self._services = services
        self._attempt = attempt
        self._batch = batch

    async def run(self) -> None:
        """Embed and index the batch. Raises Transient errors of the embedder and LeaseLost.

        Running it again after it has committed changes nothing.
        """
        loaded = await self._load()
        if loaded is None:
            return
        work = _Work(documents=list(loaded.documents))
        _drop_unusable(work)
        await self._embed(work, loaded)
        try:
            async with self._context.transaction() as connection:
                if not await batches.holds_payload(connection, self._batch):
                    return
                await self._write(connection, work, loaded)
        except _Cancelled:
            log.info("process.dropped", attempt=self._attempt, batch=self._batch)
        except (asyncpg.DeadlockDetectedError, asyncpg.SerializationError) as error:
            raise TextChanged(f"another job wrote the same documents: {error}") from error

    async def _load(self) -> _Loaded | None:
        """Read the batch and what is in force for its documents. None: there is nothing to do any more."""
        async with self._context.connection() as connection:
            payload = await batches.payload_of(connection, self._batch)
            pair = await connection.fetchval("select pair from index_attempt where id = $1", self._attempt)
            if payload is None or pair is None:
                return None
            index = await self._services.index.settings(connection)
        parsed = await batches.unpack(payload)
        latest = documents.last_of_each(parsed)
        if len(latest) < len(parsed):
            log.warning(
                "process.duplicates",
                attempt=self._attempt,
                batch=self._batch,
                count=len(parsed) - len(latest),
            )
        async with self._context.connection() as connection:
            in_force = await documents.stored(connection, [entry.source_id for entry in latest])
        return _Loaded(pair=PairId(pair), documents=latest, in_force=in_force, index=index)

    async def _embed(self, work: _Work, loaded: _Loaded) -> None:
        """Embed every document whose text differs from the one in force, and that may replace it."""
        needed = [entry for entry in work.documents if self._differs(entry, loaded.in_force)]
        try:
            await self._embed_all(work, needed, loaded.index)
        except EmbeddingRefused:
            # One text spoils the request: find out whose, so that the others go on.
            for entry in needed:
                try:
                    await self._embed_all(work, [entry], loaded.index)
                except EmbeddingRefused as error:
                    work.drop(entry, error.code, error.message)

    async def _embed_all(self, work: _Work, needed: Sequence[ParsedDocument], index: IndexSettings) -> None:
        texts = [_embedded_text(entry, at) for entry in needed for at in range(len(entry.chunks))]
        answered = await self._services.embedder.embed(texts)
        for vector in answered:
            if vector.dimension != index.dimension:
                # One such vector would spoil every search. The batch waits until a person has put it right.
                raise WrongDimension(
                    f"the model server gives {vector.dimension} dimensions, "
                    f"and the index holds {index.dimension}"
                )
        vectors = iter(answered)
        for entry in needed:
            work.vectors[entry.source_id] = [next(vectors) for _ in entry.chunks]

    def _differs(self, entry: ParsedDocument, in_force: dict[str, StoredDocument]) -> bool:
        stored = in_force.get(entry.source_id)
        return stored is None or (
            stored.content_hash != hash_of(entry) and may_replace(self._version(entry), stored.version)
        )

    def _version(self, entry: ParsedDocument) -> Version:
        return version_of(entry.revision, self._batch)

    async def _write(self, connection: Connection, work: _Work, loaded: _Loaded) -> None:
        """All effects of the batch, in the caller's transaction."""
        in_force = await documents.stored(
            connection, [entry.source_id for entry in work.documents], lock=True
        )
        changed = [entry for entry in work.documents if self._differs(entry, in_force)]
        for entry in changed:
            if entry.source_id not in work.vectors:
                raise TextChanged("a document of this batch was changed or deleted while it was processed")
        written = await self._replace(connection, work, changed, loaded.index)
        await self._note_seen(connection, work, loaded.pair, in_force, written)
        await batches.set_done(
            connection,
            self._batch,
            documents_new=len(written),
            chunks=sum(len(entry.chunks) for entry in changed if entry.source_id in written),
        )
        attempt = await lock_attempt(connection, self._attempt)
        if attempt is None or attempt.status is AttemptStatus.CANCELLED:
            raise _Cancelled
        await document_errors.record(connection, self._attempt, work.failures)
        await connection.execute(
            "update index_attempt set progressed_at = now() where id = $1", self._attempt
        )
        await complete_if_finished(connection, self._attempt)

    async def _replace(
        self,
        connection: Connection,
        work: _Work,
        changed: Sequence[ParsedDocument],
        index: IndexSettings,
    ) -> dict[str, int]:
        """Write the changed documents, at once if possible, else one by one around those Postgres refuses."""
        try:
            async with connection.transaction():
                return await self._replace_some(connection, work, changed, index)
        except _REFUSALS:
            written: dict[str, int] = {}
            for entry in changed:
                try:
                    async with connection.transaction():
                        written |= await self._replace_some(connection, work, [entry], index)
                except _REFUSALS as error:
                    work.drop(entry, "not_storable", str(error))
            return written

    async def _replace_some(
        self,
        connection: Connection,
        work: _Work,
        entries: Sequence[ParsedDocument],
        index: IndexSettings,
    ) -> dict[str, int]:
        if not entries:
            return {}
        written = await documents.upsert(connection, entries, self._batch)
        indexed = [
            _indexed(written[entry.source_id], entry, work.vectors[entry.source_id])
            for entry in entries
            if entry.source_id in written
        ]
        await self._services.index.replace(connection, indexed, language=index.language)
        return written

    async def _note_seen(
        self,
        connection: Connection,
        work: _Work,
        pair: PairId,
        in_force: dict[str, StoredDocument],
        written: dict[str, int],
    ) -> None:
        # New ones that another job inserted while we waited for its commit, with this text or a newer one.
        inserted = [
            entry.source_id
            for entry in work.documents
            if entry.source_id not in written and entry.source_id not in in_force
        ]
        if inserted:
            in_force = in_force | await documents.stored(connection, inserted, lock=True)
        brought: list[Brought] = []
        confirmed: dict[int, Version] = {}
        for entry in work.documents:
            stored = in_force.get(entry.source_id)
            if entry.source_id in written:
                document, current = written[entry.source_id], True
            elif stored is not None:
                document, current = stored.id, stored.content_hash == hash_of(entry)
                if current:
                    confirmed[document] = self._version(entry)
            else:
                raise TextChanged("a document of this batch came and went while it was processed")
            brought.append(Brought(document=document, source_state=entry.source_state, current=current))
        await documents.confirm(connection, confirmed)
        await documents.bring(connection, pair, self._attempt, brought)


# What Postgres says of values it cannot hold; never a lost connection, which is the store's affair.
_REFUSALS = (asyncpg.DataError, asyncpg.ProgramLimitExceededError)


def _drop_unusable(work: _Work) -> None:
    for entry in list(work.documents):
        if not entry.chunks:
            work.drop(entry, "empty", "there is no text in it")
        elif not entry.source_id or len(entry.source_id.encode()) > LONGEST_ID_BYTES:
            work.drop(entry, "unusable_id", f"its id is empty, or longer than {LONGEST_ID_BYTES} bytes")


def _embedded_text(entry: ParsedDocument, at: int) -> str:
    """A chunk says little without the title and the headings it stands under."""
    chunk = entry.chunks[at]
    return "\n".join(part for part in (entry.title, chunk.heading, chunk.body) if part)


def _indexed(document: int, entry: ParsedDocument, vectors: Sequence[Vector]) -> IndexedDocument:
    return IndexedDocument(
        document=document,
        title=entry.title,
        chunks=[
            IndexedChunk(
                ordinal=ordinal,
                heading=chunk.heading,
                anchor=chunk.anchor,
                body=chunk.body,
                embedding=vector,
            )
            for ordinal, (chunk, vector) in enumerate(zip(entry.chunks, vectors, strict=True))
        ],
    )
