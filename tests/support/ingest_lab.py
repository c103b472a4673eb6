"""A laboratory for ingestion: scripted sources behind the real port, over the real ledger and database.

``Source`` stands for a connector in a child; ``Lab`` claims one job at a time and settles it as a pool would.
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hive.broker.ledger import Ledger
from hive.broker.port import Delivery, Settlement, Verdict
from hive.client import Client
from hive.context import Context
from hive.errors import HandedBack, HiveError, LeaseLost, Transient
from hive.ids import (
    DEFAULT_TENANT,
    AttemptId,
    PairId,
    ProcessId,
    QueueName,
    TenantId,
    new_process_id,
)
from hive.ingest.attempts import Attempts
from hive.ingest.embedding import Embedder
from hive.ingest.fetching import (
    BatchReady,
    CheckpointReached,
    ChildDied,
    Chunk,
    DocumentFailed,
    FetchDone,
    FetchFailed,
    FetchLimits,
    FetchRequest,
    Frame,
    ParsedDocument,
    Question,
)
from hive.ingest.index.postgres import PostgresIndex
from hive.ingest.indexing_tick import IndexingTick
from hive.ingest.pairs import Pairs
from hive.ingest.services import IngestServices
from hive.ingest.tasks import fetch_connector, process_batch
from hive.outcomes import (
    Completed,
    ErrorKind,
    ErrorRecord,
    ExitDetail,
    Failed,
    Outcome,
    Released,
    Retrying,
)
from hive.settings import Fetch, Settings
from hive.store.postgres import Database
from hive.tasks import Registry

FETCHING = QueueName("connector_fetching")
PROCESSING = QueueName("document_processing")


def document(source_id: str, text: str, *, revision: int | None = None, chunks: int = 2) -> ParsedDocument:
    """A parsed document whose hash and state follow from its text."""
    digest = hashlib.sha256(f"{source_id} {text}".encode(errors="replace")).hexdigest()
    return ParsedDocument(
        source_id=source_id,
        title=f"About {source_id}",
        link=f"https://example.test/{source_id}",
        revision=revision,
        content_hash=digest,
        source_state={"digest": digest},
        metadata={"kind": "page"},
        chunks=[
            Chunk(ordinal=at, heading=f"Part {at}", anchor=f"part-{at}", body=f"{text}, part {at}.")
            for at in range(chunks)
        ],
    )


def pages(count: int, text: str = "words about bees") -> dict[str, str]:
    """The texts of a source with so many pages."""
    return {f"page-{at:03}": f"{text} {at}" for at in range(count)}


GONE = FetchFailed(code="gone", summary="the source is away", transient=False)


@dataclass
class Source:
    """A source, told what to do. ``texts``: id → text, in order.

    ``die_after`` and ``fail_after`` count batches of one run; ``ask``: whether it asks what is known.
    """

    texts: dict[str, str] = field(default_factory=dict)
    batch: int = 2
    ask: bool = True
    die_after: int | None = None
    fail_after: int | None = None
    failure: FetchFailed = GONE
    broken: Mapping[str, str] = field(default_factory=dict)
    make: Callable[[str, str], ParsedDocument] = document
    runs: list[FetchRequest] = field(default_factory=list)
    read: int = 0
    closed: int = 0
    on_batch: Callable[[int], Any] | None = None

    @asynccontextmanager
    async def open(self, request: FetchRequest, limits: FetchLimits) -> AsyncIterator["Session"]:
        self.runs.append(request)
        try:
            yield Session(self, request)
        finally:
            self.closed += 1


class Session:
    def __init__(self, source: Source, request: FetchRequest) -> None:
        self._source = source
        self._at = int(request.checkpoint["at"]) if request.checkpoint else 0
        self._stop = False
        self._known: Mapping[str, Mapping[str, Any]] = {}

    def stop_soon(self) -> None:
        self._stop = True

    async def answer(self, known: Mapping[str, Mapping[str, Any]]) -> None:
        self._known = known

    async def frames(self) -> AsyncIterator[Frame]:
        source = self._source
        ids = list(source.texts)
        done = 0
        while self._at < len(ids):
            if self._stop:
                yield FetchDone(complete=False)
                return
            if source.die_after == done:
                raise ChildDied(ExitDetail(exit="signal", signal=9), "the child was killed")
            if source.fail_after == done:
                yield source.failure
                return
            some = ids[self._at : self._at + source.batch]
            if source.ask:
                yield Question(source_ids=some)
            fresh = [source.make(each, source.texts[each]) for each in some if each not in source.broken]
            changed = [each for each in fresh if self._known.get(each.source_id) != each.source_state]
            failures = [
                DocumentFailed(
                    source_id=each,
                    link=f"https://example.test/{each}",
                    code="unparsable",
                    summary=source.broken[each],
                )
                for each in some
                if each in source.broken
            ]
            self._at += len(some)
            checkpoint = {"at": self._at}
            unchanged = len(fresh) - len(changed)
            source.read += len(some)
            if changed:
                yield BatchReady(
                    documents=changed, failures=failures, checkpoint=checkpoint, unchanged=unchanged
                )
            else:
                yield CheckpointReached(checkpoint=checkpoint, failures=failures, unchanged=unchanged)
            done += 1
            if source.on_batch is not None:
                await source.on_batch(done)
        if source.fail_after == done:
            yield source.failure
            return
        yield FetchDone()


class OpenSeals:
    """Seals that can be seen: the text is turned around."""

    def seal(self, plain: bytes) -> bytes:
        return b"sealed" + plain[::-1]

    def unseal(self, sealed: bytes) -> bytes:
        return sealed.removeprefix(b"sealed")[::-1]


class Lab:
    """Everything ingestion needs, and hands to run its jobs one at a time."""

    def __init__(
        self,
        database: Database,
        embedder: Embedder,
        *,
        tenant: TenantId = DEFAULT_TENANT,
        fetch: Fetch | None = None,
    ) -> None:
        self.database = database
        self.tenant = tenant
        self.source = Source()
        self.ledger = Ledger(database)
        registry = Registry()
        registry.add(fetch_connector)
        registry.add(process_batch)
        self.client = Client(routes={FETCHING: self.ledger, PROCESSING: self.ledger}, registry=registry)
        self.registry = registry
        self.attempts = Attempts(database)
        self.pairs = Pairs(database, OpenSeals())
        self.embedder = embedder
        self.owner: ProcessId = new_process_id()
        self.services = IngestServices(
            database=database,
            pairs=self.pairs,
            attempts=self.attempts,
            embedder=embedder,
            index=PostgresIndex(),
            fetcher=self,
            settings=Settings(fetch=fetch or Fetch(unprocessed_batches=1000)),
            file_roots=lambda: [Path("/")],
        )
        self.tick = IndexingTick(database, self.attempts)

    def open(
        self, request: FetchRequest, limits: FetchLimits
    ) -> contextlib.AbstractAsyncContextManager[Session]:
        """The fetcher: whatever ``source`` is now."""
        return self.source.open(request, limits)

    async def pair(self, name: str = "pages", **options: Any) -> PairId:
        view = await self.pairs.add(
            self.tenant, kind="web", name=name, config={"start": ["https://example.test/"]}, **options
        )
        return view.id

    async def start(self, pair: PairId) -> AttemptId:
        return (await self.attempts.start(self.tenant, pair, client=self.client)).attempt

    async def claim(self, queue: QueueName, limit: int = 1) -> list[Delivery]:
        return await self.ledger.claim(queue, self.owner, limit)

    def context(self, delivery: Delivery) -> Context:
        return Context(
            delivery=delivery,
            broker=self.ledger,
            stores=self.database,
            client=self.client,
            services={IngestServices: self.services},
        )

    async def handle(self, delivery: Delivery, context: Context | None = None) -> Verdict:
        """Run the handler and settle, as a pool would, but with retries due at once."""
        context = context or self.context(delivery)
        await self.ledger.mark_started([delivery])
        outcome = await self.outcome(delivery, context)
        settled = await self.ledger.settle([Settlement(delivery=delivery, outcome=outcome)])
        return settled[0]

    async def outcome(self, delivery: Delivery, context: Context) -> Outcome:
        task = self.registry.get(delivery.task)
        try:
            await task(context, **delivery.args)
        except HandedBack:
            return Released()
        except LeaseLost:
            raise
        except ChildDied as error:
            record = ErrorRecord(kind=ErrorKind.PERMANENT, code="child_died", summary=error.summary)
            return Retrying(delay_seconds=0, error=record, crashed=True, exit=error.detail)
        except HiveError as error:
            exhausted = delivery.attempt >= delivery.max_attempts
            if isinstance(error, Transient) and not exhausted:
                record = ErrorRecord(kind=ErrorKind.EXHAUSTED, code=error.code, summary=error.message)
                return Retrying(delay_seconds=0, error=record)
            kind = ErrorKind.EXHAUSTED if exhausted else ErrorKind.PERMANENT
            return Failed(error=ErrorRecord(kind=kind, code=error.code, summary=error.message))
        return Completed(settled=context.settled)

    async def run(self, queue: QueueName, *, most: int = 10_000) -> int:
        """Run the queue's jobs until it is empty; returns how many ran."""
        ran = 0
        while ran < most:
            await self.ledger.sweep([queue])
            claimed = await self.claim(queue)
            if not claimed:
                break
            await self.handle(claimed[0])
            ran += 1
        return ran

    async def run_all(self) -> None:
        """Run fetch and process jobs until nothing is left."""
        while await self.run(FETCHING, most=1) + await self.run(PROCESSING):
            pass

    async def ingest(self, pair: PairId) -> AttemptId:
        """One whole attempt."""
        attempt = await self.start(pair)
        await self.run_all()
        return attempt

    async def give_up(self, delivery: Delivery) -> None:
        """Settle a claimed job as failed, without having run it."""
        error = ErrorRecord(kind=ErrorKind.PERMANENT, code="given_up", summary="it was given up")
        await self.ledger.settle([Settlement(delivery=delivery, outcome=Failed(error=error))])

    async def die(self) -> None:
        """The process is killed and starts again: its deliveries come back, and it has another id."""
        await self.ledger.owner_died(self.owner)
        self.owner = new_process_id()

    async def rows(self, query: str, *args: Any) -> list[dict[str, Any]]:
        async with self.database.transaction(self.tenant) as connection:
            return [dict(row) for row in await connection.fetch(query, *args)]

    async def value(self, query: str, *args: Any) -> Any:
        async with self.database.transaction(self.tenant) as connection:
            return await connection.fetchval(query, *args)

    async def proof(self, expected: Mapping[str, str] | None = None) -> None:
        """By SQL: every document of the source is there exactly once, with exactly its chunks."""
        wanted = self.source.texts if expected is None else expected
        stored = await self.rows("select id, source_id, chunk_count from document order by source_id")
        assert [row["source_id"] for row in stored] == sorted(wanted)
        chunks = await self.rows(
            "select d.source_id, c.ordinal, c.body from chunk c join document d on d.id = c.document "
            "order by d.source_id, c.ordinal"
        )
        assert [(row["source_id"], row["ordinal"], row["body"]) for row in chunks] == [
            (source_id, chunk.ordinal, chunk.body)
            for source_id in sorted(wanted)
            for chunk in self.source.make(source_id, wanted[source_id]).chunks
        ]
        assert (
            await self.value("select count(*) from index_batch where status = 'done' and payload is not null")
            == 0
        )


class Crash(BaseException):
    """The process dies here, as far as the code under test can tell."""


async def crash_at(step: int, coroutine: Any) -> bool:
    """Drive ``coroutine`` and throw Crash into its ``step``-th await; returns whether it got that far."""

    class Driver:
        def __init__(self) -> None:
            self.steps = 0

        def __await__(self) -> Any:
            send, value = coroutine.send, None
            while True:
                try:
                    yielded = send(value)
                except StopIteration:
                    return False
                except Crash:
                    return True
                self.steps += 1
                if self.steps == step:
                    # What was awaited goes on without us, as a statement that is already at the server would.
                    send, value = coroutine.throw, Crash()
                    continue
                try:
                    value = yield yielded
                    send = coroutine.send
                except BaseException as error:  # noqa: BLE001 - passed on to the coroutine
                    send, value = coroutine.throw, error

    return await Driver()
