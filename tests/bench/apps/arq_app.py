"""arq: jobs on the loop, polled every 50 ms, results not kept. Its bulk is a gather of single sends."""

import os
from typing import Any

import recorder
from arq import create_pool
from arq.connections import RedisSettings
from driver import in_groups

SETTINGS = RedisSettings.from_dsn(os.environ["BENCH_REDIS"])


async def empty(_context: Any) -> None:
    recorder.empty()


async def stamp(_context: Any, sent: float) -> None:
    recorder.stamp(sent)


async def rest(_context: Any, seconds: float) -> None:
    await recorder.rest_on_loop(seconds)


async def effect(_context: Any, number: int, seconds: float) -> None:
    await recorder.effect_on_loop(number, seconds)


class WorkerSettings:
    functions = (empty, stamp, rest, effect)
    redis_settings = SETTINGS
    max_jobs = int(os.environ.get("BENCH_SLOTS", "100"))
    poll_delay = 0.05
    keep_result = 0
    log_results = False


class App:
    async def open(self) -> None:
        self._redis = await create_pool(SETTINGS)

    async def send(self, task: str, *arguments: Any) -> None:
        await self._redis.enqueue_job(task, *arguments)

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        await in_groups([self._redis.enqueue_job(task, *arguments) for arguments in calls])

    async def close(self) -> None:
        await self._redis.aclose()
