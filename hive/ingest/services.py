"""What the handlers of ingestion share in one process. The supervisor makes it, a context hands it out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hive.context import Stores
from hive.ingest.attempts import Attempts
from hive.ingest.embedding import Embedder
from hive.ingest.fetching import FetchRunner
from hive.ingest.index.port import Index
from hive.ingest.pairs import Pairs
from hive.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestServices:
    """``context.service(IngestServices)``.

    ``file_roots`` gives the folders that the files connector may read; it is asked anew for each fetch, since
    the command line can add some while hive runs.
    """

    database: Stores
    pairs: Pairs
    attempts: Attempts
    embedder: Embedder
    index: Index
    fetcher: FetchRunner
    settings: Settings
    file_roots: Callable[[], Sequence[Path]]
