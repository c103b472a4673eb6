"""The HTTP API over real stores, without pools: for tests that call it as a client would."""

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import uuid4

import aiohttp

import hive
from hive.broker.ledger import Ledger
from hive.broker.memory import Memory
from hive.clock import SystemClock
from hive.ids import QueueName
from hive.ingest.attempts import Attempts
from hive.ingest.embedding import Embedder
from hive.ingest.index.postgres import PostgresIndex
from hive.ingest.index.search import Search
from hive.ingest.pairs import Pairs
from hive.ingest.tasks import fetch_connector, process_batch
from hive.settings import Embedding, Settings
from hive.store.postgres import Database
from hive.store.sealing import Sealer
from hive.store.tenants import Tenants
from hive.tasks import Registry
from probes.health import Verdict
from supervisor.http.application import build
from supervisor.http.backend import Backend
from supervisor.http.local_token import local_token
from supervisor.http.roots import FileRoots
from supervisor.http.routing import Route
from supervisor.http.server import HttpServer
from supervisor.http.table import ROUTES


@dataclass
class Standing:
    """Health as a test sets it."""

    verdict: Verdict = field(default_factory=lambda: Verdict(ok=True))

    def live(self) -> Verdict:
        return Verdict(ok=True)

    def ready(self) -> Verdict:
        return self.verdict


class Figures:
    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def render(self) -> bytes:
        return b"hive_up 1\n"


def registry() -> Registry:
    """Ingestion's tasks, one of ours, and one of the system's."""
    made = Registry()
    made.add(fetch_connector)
    made.add(process_batch)

    async def note(context: hive.Context, text: str) -> None:
        """Says something."""

    async def sweep_floor(context: hive.Context) -> None:
        """Belongs to nobody."""

    hive.task(queue="scheduled_tasks", name="note", into=made)(note)
    hive.task(queue="scheduled_tasks", name="sweep_floor", scope="system", into=made)(sweep_floor)
    return made


@dataclass
class Api:
    """A client of the served API, and what stands behind it."""

    client: aiohttp.ClientSession
    base: str
    token: str
    backend: Backend
    health: Standing
    drained: list[bool]

    async def call(
        self,
        method: str,
        path: str,
        *,
        token: str | None = None,
        tenant: str | None = None,
        headers: Mapping[str, str] | None = None,
        **request: Any,
    ) -> tuple[int, Any]:
        """Status and JSON of one request; with the local token unless another ("" for none) is given."""
        sent = dict(headers or {})
        bearer = self.token if token is None else token
        if bearer:
            sent["Authorization"] = f"Bearer {bearer}"
        if tenant is not None:
            sent["X-Hive-Tenant"] = tenant
        async with self.client.request(method, self.base + path, headers=sent, **request) as answer:
            if answer.content_type != "application/json":
                return answer.status, await answer.text()
            return answer.status, await answer.json()

    async def get(self, path: str, **options: Any) -> Any:
        """A GET that must succeed."""
        status, content = await self.call("GET", path, **options)
        assert status == 200, content
        return content

    async def post(self, path: str, body: object = None, **options: Any) -> Any:
        """A POST that must succeed."""
        if body is not None:
            options["json"] = body
        status, content = await self.call("POST", path, **options)
        assert status in (200, 201, 202), content
        return content

    async def issue(self, role: str, tenant: str | None = None) -> str:
        """A new stored token."""
        token = f"test-{uuid4()}"
        async with self.backend.database.acquire() as connection:
            await connection.execute(
                "insert into hive.api_token (id, name, digest, role, tenant) values ($1, $2, $3, $4, $5)",
                uuid4(),
                f"{role} of {tenant}",
                sha256(token.encode()).digest(),
                role,
                tenant,
            )
        return token


@asynccontextmanager
async def serving(
    database: Database, state_dir: Path, settings: Settings | None = None, table: tuple[Route, ...] = ROUTES
) -> AsyncGenerator[Api]:
    """Serve the API on a free port."""
    os.makedirs(state_dir, mode=0o700, exist_ok=True)
    settings = settings or Settings()
    ledger = Ledger(database)
    stream = Memory(SystemClock())
    routes = {
        QueueName(queue): broker
        for pool in settings.pools.values()
        for queues, broker in ((pool.ledger, ledger), (pool.stream, stream))
        for queue in queues
    }
    tasks = registry()
    health, drained = Standing(), list[bool]()
    # Nothing listens there: search then goes by words alone, as it does while the model server is away.
    embedder = Embedder(Embedding(url="http://127.0.0.1:1/v1"))
    backend = Backend(
        settings=settings,
        database=database,
        tenants=Tenants(database),
        pairs=Pairs(database, Sealer.load(settings.secrets, state_dir)),
        attempts=Attempts(database),
        search=Search(database, embedder, PostgresIndex()),
        routes=routes,
        ledger=ledger,
        client=hive.Client(routes=routes, registry=tasks),
        pools={},
        services=list,
        health=health,
        metrics=Figures(),
        roots=FileRoots(settings.connectors.files.roots, state_dir),
        drain=lambda: drained.append(True),
    )
    token = local_token(state_dir)
    server = HttpServer(
        lambda: build(backend, token=token, routes=table),
        settings.http.model_copy(update={"port": 0}),
        state_dir,
    )
    await server.start()
    try:
        async with aiohttp.ClientSession() as client:
            yield Api(
                client=client,
                base=f"http://127.0.0.1:{server.port}",
                token=token,
                backend=backend,
                health=health,
                drained=drained,
            )
    finally:
        await server.stop()
        await embedder.close()


def recent(text: str) -> bool:
    """Whether an ISO time lies within the last minute."""
    return abs((SystemClock().now() - datetime.fromisoformat(text).astimezone(UTC)).total_seconds()) < 60
