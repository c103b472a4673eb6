"""saq: jobs on the loop. Its bulk is a gather of single sends."""

import os
from typing import Any

import recorder
from driver import in_groups
from saq import Queue

queue = Queue.from_url(os.environ["BENCH_REDIS"])


async def empty(_context: Any) -> None:
    recorder.empty()


async def stamp(_context: Any, *, sent: float) -> None:
    recorder.stamp(sent)


async def rest(_context: Any, *, seconds: float) -> None:
    await recorder.rest_on_loop(seconds)


async def effect(_context: Any, *, number: int, seconds: float) -> None:
    await recorder.effect_on_loop(number, seconds)


settings = {
    "queue": queue,
    "functions": [empty, stamp, rest, effect],
    "concurrency": int(os.environ.get("BENCH_SLOTS", "100")),
}
NAMES = {"empty": (), "stamp": ("sent",), "rest": ("seconds",), "effect": ("number", "seconds")}


class App:
    async def open(self) -> None:
        await queue.connect()

    async def send(self, task: str, *arguments: Any) -> None:
        await queue.enqueue(task, **dict(zip(NAMES[task], arguments, strict=True)))

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        await in_groups([self.send(task, *arguments) for arguments in calls])

    async def close(self) -> None:
        await queue.disconnect()
