"""taskiq with taskiq-redis' streams. Its bulk is a gather of single sends."""

import os
from typing import Any

import recorder
from driver import in_groups
from taskiq_redis import RedisStreamBroker

broker = RedisStreamBroker(os.environ["BENCH_REDIS"])


@broker.task(task_name="empty")
async def empty() -> None:
    recorder.empty()


@broker.task(task_name="stamp")
async def stamp(sent: float) -> None:
    recorder.stamp(sent)


@broker.task(task_name="rest")
async def rest(seconds: float) -> None:
    await recorder.rest_on_loop(seconds)


@broker.task(task_name="effect")
async def effect(number: int, seconds: float) -> None:
    await recorder.effect_on_loop(number, seconds)


TASKS: dict[str, Any] = {"empty": empty, "stamp": stamp, "rest": rest, "effect": effect}


class App:
    async def open(self) -> None:
        await broker.startup()

    async def send(self, task: str, *arguments: Any) -> None:
        await TASKS[task].kiq(*arguments)

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        await in_groups([TASKS[task].kiq(*arguments) for arguments in calls])

    async def close(self) -> None:
        await broker.shutdown()
