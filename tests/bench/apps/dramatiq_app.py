"""dramatiq: actors in threads, Redis lists. It has no bulk call."""

import os
from typing import Any

import dramatiq
import recorder
from dramatiq.brokers.redis import RedisBroker

broker = RedisBroker(url=os.environ["BENCH_REDIS"])
dramatiq.set_broker(broker)

ACTORS = {name: dramatiq.actor(actor_name=name)(getattr(recorder, name)) for name in recorder.TASKS}


class App:
    async def open(self) -> None:
        pass

    async def send(self, task: str, *arguments: Any) -> None:
        ACTORS[task].send(*arguments)

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        for arguments in calls:
            ACTORS[task].send(*arguments)

    async def close(self) -> None:
        broker.close()
