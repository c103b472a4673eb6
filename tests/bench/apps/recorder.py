"""What the tasks of every system do, and how their worker process notes it.

The standard library alone: each system imports this into an environment of its own. Times are those of
``time.monotonic``, which on Linux is one clock for all processes. A worker writes its notes once, when the
expected number of tasks has run::

    BENCH_EXPECT         how many runs to wait for
    BENCH_EXPECT_DELAYS  or how many delays
    BENCH_OUT            the file its notes go to: {"count", "first", "last", "processor", "busy", "delays"}
    BENCH_EFFECTS        where `effect` notes starts and effects, a line each
"""

import asyncio
import json
import os
import threading
import time

TASKS = ("empty", "rest", "stamp", "effect")


class Recorder:
    """Counts runs; safe to call from threads."""

    def __init__(self, expected: int, expected_delays: int, out: str) -> None:
        self._expected = expected
        self._expected_delays = expected_delays
        self._out = out
        self._lock = threading.Lock()
        self._count = 0
        self._first = 0.0
        self._first_processor = 0.0
        self._busy = 0.0
        self._delays: list[float] = []

    def enter(self) -> float:
        """A task begins; returns the time."""
        now = time.monotonic()
        if not self._first:
            with self._lock:
                if not self._first:
                    self._first = now
                    self._first_processor = time.process_time()
        return now

    def leave(self, began: float, delay: float | None = None) -> None:
        """It ends. ``delay``: seconds from its sending to its begin, for those that know."""
        now = time.monotonic()
        with self._lock:
            self._count += 1
            self._busy += now - began
            if delay is not None:
                self._delays.append(delay)
                if len(self._delays) == self._expected_delays:
                    self._write(now)
            if self._count == self._expected:
                self._write(now)

    def _write(self, now: float) -> None:
        notes = {
            "count": self._count,
            "first": self._first,
            "last": now,
            "processor": time.process_time() - self._first_processor,
            "busy": self._busy,
            "delays": self._delays,
        }
        with open(self._out + ".new", "w", encoding="utf-8") as file:
            json.dump(notes, file)
        os.replace(self._out + ".new", self._out)


recorder = Recorder(
    int(os.environ.get("BENCH_EXPECT", "0")),
    int(os.environ.get("BENCH_EXPECT_DELAYS", "0")),
    os.environ.get("BENCH_OUT", ""),
)
_effects = -1


def _note(mark: str, number: int) -> None:
    global _effects  # noqa: PLW0603 - one file a process, opened by the first task that needs it
    if _effects < 0:
        _effects = os.open(os.environ["BENCH_EFFECTS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_effects, f"{mark} {number} {time.monotonic():.6f}\n".encode())


def empty() -> None:
    """Nothing but the note that it ran. Fit for loops as well as threads."""
    recorder.leave(recorder.enter())


def stamp(sent: float) -> None:
    """Note how long ago it was sent."""
    now = recorder.enter()
    recorder.leave(now, now - sent)


def rest(seconds: float) -> None:
    """Sleep in a thread."""
    began = recorder.enter()
    time.sleep(seconds)
    recorder.leave(began)


async def rest_on_loop(seconds: float) -> None:
    """Sleep on the loop."""
    began = recorder.enter()
    await asyncio.sleep(seconds)
    recorder.leave(began)


def effect(number: int, seconds: float) -> None:
    """Work a while in a thread, then have an effect that can be counted."""
    started(number)
    time.sleep(seconds)
    affected(number)


async def effect_on_loop(number: int, seconds: float) -> None:
    """The same on the loop."""
    started(number)
    await asyncio.sleep(seconds)
    affected(number)


def started(number: int) -> None:
    """Note that job ``number`` was entered."""
    _note("s", number)


def affected(number: int) -> None:
    """The effect of job ``number``."""
    _note("e", number)
