"""What the zygote imports at the first fetch child, so that all later ones start with it and share its pages.

Only libraries that start no thread when imported. An idle zygote holds none of them: together they weigh
more than the rest of it (see ``tests/integration/test_fetch_zygote.py``, which measures).
"""

import importlib
import os
import pkgutil
import sys
from contextlib import suppress
from typing import Final

LIBRARIES: Final = (
    "asyncio",
    "concurrent.futures.thread",
    "email.message",
    "html.entities",
    "ssl",
    "stringprep",
    "zipfile",
    "zlib",
    "lxml.html",
    "lxml_html_clean",
    "trafilatura",
    "pypdf",
    "docx",
    "protego",
    "semantic_text_splitter",
    "aiohttp",
    "hive.ingest.fetching",
    "hive.ingest.splitting",
    "hive.ingest.connectors.catalogue",
    "pools.fetch.child",
    "pools.fetch.task_child",
    "hive.tasks",
)
WITH_MODULES: Final = ("hive.ingest.connectors", "hive.ingest.parsing", "encodings")
_ELSEWHERE: Final = frozenset({"encodings.mbcs", "encodings.oem"})  # Windows only


def load() -> None:
    """Import them all. One that is missing or broken is reported by the child that needs it, not here."""
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    for package in WITH_MODULES:
        for name in _modules_of(package):
            with suppress(ImportError):
                importlib.import_module(name)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        # A fork copies one thread and every lock: better slow than stuck, so say which import did it.
        print(f"hive-zygote: a preloaded library started {threads - 1} threads", file=sys.stderr)  # noqa: T201


def _modules_of(package: str) -> list[str]:
    with suppress(ImportError):
        found = importlib.import_module(package)
        names = (f"{package}.{module.name}" for module in pkgutil.iter_modules(found.__path__))
        return [name for name in names if name not in _ELSEWHERE]
    return []
