"""streaq: tasks on the loop over Redis streams, with a bulk call. Results are not kept."""

import os
from contextlib import AsyncExitStack
from typing import Any

import recorder
from streaq import Worker

worker: Any = Worker(
    redis_url=os.environ["BENCH_REDIS"], concurrency=int(os.environ.get("BENCH_SLOTS", "100"))
)


@worker.task(name="empty", ttl=0)
async def empty() -> None:
    recorder.empty()


@worker.task(name="stamp", ttl=0)
async def stamp(sent: float) -> None:
    recorder.stamp(sent)


@worker.task(name="rest", ttl=0)
async def rest(seconds: float) -> None:
    await recorder.rest_on_loop(seconds)


@worker.task(name="effect", ttl=0)
async def effect(number: int, seconds: float) -> None:
    await recorder.effect_on_loop(number, seconds)


TASKS: dict[str, Any] = {"empty": empty, "stamp": stamp, "rest": rest, "effect": effect}


class App:
    async def open(self) -> None:
        self._stack = AsyncExitStack()
        await self._stack.enter_async_context(worker)

    async def send(self, task: str, *arguments: Any) -> None:
        await TASKS[task].enqueue(*arguments)

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        await worker.enqueue_many([TASKS[task].enqueue(*arguments) for arguments in calls])

    async def close(self) -> None:
        await self._stack.aclose()
