"""Handlers that run in children; imported there by name."""

import os
import signal
from pathlib import Path
from typing import Any

from hive import Context, NeedsOperator, Permanent, Retry, Throttled, Transient, task
from hive.tasks import Registry

registry = Registry()


def plain(context: Any, path: str) -> None:
    Path(path).write_text(f"{context.id} {context.tenant} {context.attempt} {context.idempotency_key}")
    print("to standard output")


@task(process=True, retry=Retry(on=(ConnectionError,)), into=registry)
def raises(context: Context, what: str) -> None:
    raise {
        "permanent": Permanent("no use"),
        "operator": NeedsOperator("a person must act"),
        "transient": Transient("later", retry_after_seconds=9),
        "throttled": Throttled("slow down", retry_after_seconds=9),
        "listed": ConnectionResetError("listed\nsecond line"),
        "unlisted": ValueError("bad\x00 value"),
        "exit": SystemExit(3),
    }[what]


def dies(context: Any, number: int) -> None:
    os.kill(os.getpid(), number)


def blocks(context: Any, path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        signal.pause()


def hungry(context: Any) -> None:
    raise MemoryError


def wants_database(context: Any) -> None:
    context.transaction()
