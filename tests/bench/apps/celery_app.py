"""celery on Redis: tasks in threads, results ignored. It has no bulk call."""

import os
from typing import Any

import recorder
from celery import Celery

app = Celery("bench", broker=os.environ["BENCH_REDIS"])
app.conf.update(task_ignore_result=True, broker_connection_retry_on_startup=True)

TASKS = {name: app.task(name=name)(getattr(recorder, name)) for name in recorder.TASKS}


class App:
    async def open(self) -> None:
        pass

    async def send(self, task: str, *arguments: Any) -> None:
        TASKS[task].delay(*arguments)

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        for arguments in calls:
            TASKS[task].delay(*arguments)

    async def close(self) -> None:
        app.close()
