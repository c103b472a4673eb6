"""procrastinate: jobs as rows of PostgreSQL, with a bulk call."""

import os
from typing import Any

import procrastinate
import recorder

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=os.environ["BENCH_POSTGRES"]))


@app.task(name="empty")
async def empty() -> None:
    recorder.empty()


@app.task(name="stamp")
async def stamp(sent: float) -> None:
    recorder.stamp(sent)


@app.task(name="rest")
async def rest(seconds: float) -> None:
    await recorder.rest_on_loop(seconds)


@app.task(name="effect")
async def effect(number: int, seconds: float) -> None:
    await recorder.effect_on_loop(number, seconds)


TASKS = {"empty": empty, "stamp": stamp, "rest": rest, "effect": effect}
NAMES = {"empty": (), "stamp": ("sent",), "rest": ("seconds",), "effect": ("number", "seconds")}


class App:
    async def open(self) -> None:
        await app.open_async()

    async def send(self, task: str, *arguments: Any) -> None:
        await TASKS[task].defer_async(**dict(zip(NAMES[task], arguments, strict=True)))

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        named = [dict(zip(NAMES[task], arguments, strict=True)) for arguments in calls]
        await TASKS[task].batch_defer_async(*named)

    async def close(self) -> None:
        await app.close_async()
