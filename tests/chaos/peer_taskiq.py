"""taskiq with taskiq-redis' streams, under the same faults. Runs in an environment without hive.

As a worker it is given to taskiq's own command line; run as a program it publishes: each line of input is a
list of (number, milliseconds), answered by one line when all of them are sent. What it is to be stands in the
environment: ``CHAOS_DSN``, ``CHAOS_REDIS``, ``CHAOS_JOURNAL`` and, where its default is not wanted,
``CHAOS_IDLE_SECONDS``.
"""

import asyncio
import json
import os
import sys
from typing import Any
from uuid import UUID

import asyncpg
from taskiq import Context, TaskiqDepends, TaskiqEvents, TaskiqState
from taskiq_redis import RedisStreamBroker

_idle = os.environ.get("CHAOS_IDLE_SECONDS")
_options = {"idle_timeout": round(float(_idle) * 1000)} if _idle else {}
broker = RedisStreamBroker(os.environ["CHAOS_REDIS"], **_options)


@broker.on_event(TaskiqEvents.WORKER_STARTUP)
async def startup(state: TaskiqState) -> None:
    state.pool = await asyncpg.create_pool(os.environ["CHAOS_DSN"], min_size=8, max_size=8)
    state.journal = os.open(os.environ["CHAOS_JOURNAL"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(state: TaskiqState, fact: dict[str, Any]) -> None:
    os.write(state.journal, json.dumps(fact).encode() + b"\n")


@broker.task(task_name="effect")
async def effect(number: int, milliseconds: int, context: Context = TaskiqDepends()) -> None:  # noqa: B008
    message = context.message.task_id
    note(context.state, {"started": number, "message": message})
    await asyncio.sleep(milliseconds / 1000)
    await context.state.pool.execute(
        "insert into chaos.effect (number, message) values ($1, $2)", number, UUID(message)
    )
    note(context.state, {"outcome": "completed", "message": message})


async def publish() -> None:
    await broker.startup()
    while line := await asyncio.to_thread(sys.stdin.readline):
        await asyncio.gather(*(effect.kiq(number, milliseconds) for number, milliseconds in json.loads(line)))
        print("sent", flush=True)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(publish())
