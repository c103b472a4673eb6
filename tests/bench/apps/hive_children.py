"""How long a child process takes to its first word, in milliseconds: prints {system: {quantile: value}}.

hive's zygote: a fetch child that walks an empty folder, and a child for a ``process=True`` task. Beside them
the fork server with the same libraries preloaded, and spawn: a function that sends one byte. All with a pause
before each, as between crawls.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from library_children import PAUSE_SECONDS

from hive.events import Events
from hive.ingest.fetching import FetchLimits, FetchRequest
from hive.settings import Fetch
from pools.children import ChildCall
from pools.fetch.parent import FetchChildren
from pools.fetch.preload import LIBRARIES
from pools.fetch.zygote import Zygote

LIMITS = FetchLimits(memory_bytes=2**30, stall_seconds=60, wall_seconds=60)


async def with_zygote(count: int, folder: Path) -> dict[str, list[float]]:
    children = FetchChildren(Zygote.start(), Fetch(), Events())
    request = FetchRequest(
        kind="files",
        config={"path": str(folder), "roots": [str(folder)]},
        credential=None,
        checkpoint=None,
        batch_documents=16,
        batch_bytes=2**20,
        max_document_bytes=2**20,
        chunk_characters=1200,
        chunk_overlap_characters=0,
    )
    call = ChildCall(
        function="trivial:nothing",
        id="1",
        task="nothing",
        tenant="public",
        attempt=1,
        idempotency_key="nothing:1",
        arguments={},
    )
    fetch: list[float] = []
    task: list[float] = []
    try:
        for number in range(count + 1):
            await asyncio.sleep(PAUSE_SECONDS)
            began = time.monotonic()
            async with children.open(request, LIMITS) as session:
                words = 0
                async for _ in session.frames():
                    if not words and number:  # the first child waits for the preload
                        fetch.append(time.monotonic() - began)
                    words += 1
            await asyncio.sleep(PAUSE_SECONDS)
            began = time.monotonic()
            await children.run_task(call, hard_seconds=30)
            if number:
                task.append(time.monotonic() - began)
    finally:
        children.nursery.close()
    return {"hive zygote": fetch, "hive zygote, task": task}


def with_library(method: str, count: int) -> list[float]:
    command = [sys.executable, "library_children.py", method, str(count), *LIBRARIES]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    at: Callable[[float], float] = lambda share: 1000 * ordered[int(share * (len(ordered) - 1))]  # noqa: E731
    return {"p50": at(0.5), "p95": at(0.95)}


def main(count: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        found = asyncio.run(with_zygote(count, folder))
    found["fork server, preloaded"] = with_library("forkserver", count)
    found["spawn"] = with_library("spawn", max(5, count // 4))
    print(json.dumps({system: quantiles(seconds) for system, seconds in found.items() if seconds}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
