"""What the tests of ingestion share: a model server for all of them, and a laboratory for each."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from hive.ingest.embedding import Embedder
from hive.settings import Embedding
from hive.store.postgres import Database
from ingest_lab import Lab
from model_process import ModelProcess


@pytest.fixture(scope="session")
def model_socket(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Where hive's own model server answers."""
    path = tmp_path_factory.mktemp("model") / "model.sock"
    with ModelProcess("--uds", str(path)):
        yield path


@pytest.fixture
async def embedder(model_socket: Path) -> AsyncGenerator[Embedder]:
    """A client of that server."""
    made = Embedder(Embedding(), socket_path=model_socket)
    yield made
    await made.close()


@pytest.fixture
async def lab(database: Database, embedder: Embedder) -> Lab:
    """Ingestion on a database of the test's own."""
    return Lab(database, embedder)
