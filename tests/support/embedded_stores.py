"""An embedded PostgreSQL that runs for as long as a test needs it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg

from hive.embedded import EmbeddedPostgres
from hive.settings import Embedded

SETTINGS = Embedded(postgres_shared_buffers_mb=16)
CHEAP = {"fsync": "off"}


@asynccontextmanager
async def running(state_dir: Path, **options: Path) -> AsyncGenerator[EmbeddedPostgres]:
    server = EmbeddedPostgres(state_dir, SETTINGS, options=CHEAP, **options)
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def query(dsn: str, text: str) -> object:
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(text)
    finally:
        await connection.close()
