"""What tests over real stores share: a model server for all; a laboratory, an interface, a site for each."""

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest

from hive.ingest.embedding import Embedder
from hive.settings import Embedding
from hive.store.postgres import Database
from http_api import Api
from http_api import serving as serving_api
from ingest_lab import Lab
from model_process import ModelProcess
from web_world import World
from web_world import serving as serving_pages


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


@pytest.fixture
async def api(database: Database, state_dir: Path) -> AsyncGenerator[Api]:
    """hive's HTTP interface."""
    async with serving_api(database, state_dir) as served:
        yield served


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "docs"
    folder.mkdir()
    return folder


@pytest.fixture
async def world() -> AsyncGenerator[World]:
    """A web site."""
    async with serving_pages() as served:
        yield served
