"""Sends messages with one system, in that system's own environment, and prints what it took as JSON.

    python driver.py MODULE fill TASK COUNT [ARGUMENT …]   the same call COUNT times, in bulk
    python driver.py MODULE number COUNT SECONDS           `effect` of the numbers 0 … COUNT-1, in bulk; each
                                                           takes SECONDS on average
    python driver.py MODULE single COUNT                   `empty`, each sent when the last was accepted
    python driver.py MODULE paced COUNT                    `stamp`, 50 to 150 ms apart

A module has a class ``App`` with ``open``, ``send``, ``send_many`` and ``close``.
"""

import asyncio
import importlib
import json
import random
import sys
import time
from typing import Any, Protocol


class App(Protocol):
    """A system's client."""

    async def open(self) -> None: ...

    async def send(self, task: str, *arguments: Any) -> None:
        """Send one message and wait until it is accepted."""
        ...

    async def send_many(self, task: str, calls: list[tuple[Any, ...]]) -> None:
        """Send many, the fastest way the system documents."""
        ...

    async def close(self) -> None: ...


async def drive(app: App, verb: str, arguments: list[str]) -> dict[str, float]:
    """Do what was asked; returns the seconds and processor seconds it took, opening and closing aside."""
    await app.open()
    try:
        begin, used = time.perf_counter(), time.process_time()
        match verb, arguments:
            case "fill", [task, count, *values]:
                numbers = tuple(float(value) for value in values)
                await app.send_many(task, [numbers] * int(count))
            case "number", [count, seconds]:
                # Of different lengths: jobs that all end at once would make the moment of a kill special.
                spread = random.Random(1)
                calls = [(n, float(seconds) * spread.uniform(0.5, 1.5)) for n in range(int(count))]
                await app.send_many("effect", calls)
            case "single", [count]:
                for _ in range(int(count)):
                    await app.send("empty")
            case "paced", [count]:
                spread = random.Random(1)
                for _ in range(int(count)):
                    await asyncio.sleep(spread.uniform(0.05, 0.15))
                    await app.send("stamp", time.monotonic())
            case _:
                raise SystemExit(f"driver: {verb} {arguments}?")
        return {"seconds": time.perf_counter() - begin, "processor": time.process_time() - used}
    finally:
        await app.close()


async def in_groups(sends: list[Any], size: int = 200) -> None:
    """Await coroutines, ``size`` at a time: the bulk of systems that have no bulk call."""
    for at in range(0, len(sends), size):
        await asyncio.gather(*sends[at : at + size])


if __name__ == "__main__":
    sys.modules.setdefault("driver", sys.modules["__main__"])
    print(
        json.dumps(asyncio.run(drive(importlib.import_module(sys.argv[1]).App(), sys.argv[2], sys.argv[3:])))
    )
