"""What a killed worker costs: effects lost, effects doubled, and how long until all work is done."""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from bench import Bench, Failed, Worker, report, wait_for
from measures import Figure, Sheet
from systems import ALL, System

COUNT = 2_000
JOB_SECONDS = 0.02
KILLED_AT = 500
START_SECONDS = 60.0
PATIENCE_SECONDS = 60.0
QUICK_PATIENCE_SECONDS = 10.0
LATE_SECONDS = 2.0
"""How long is watched for doubles once everything is there."""
ROWS = "select count(distinct number) from bench.effect"
NUMBERS = "select array_agg(number) from bench.effect"


class Trace:
    """What the jobs have noted so far: (number, time) of each start and of each effect."""

    def __init__(self, path: Path) -> None:
        self.starts: list[tuple[int, float]] = []
        self.effects: list[tuple[int, float]] = []
        self._done: set[int] = set()
        self._path = path
        self._read = 0

    def done(self) -> int:
        """How many jobs have had their effect; reads what is new."""
        if self._path.exists():
            with self._path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
            self._read += len(text)
            for line in text.decode().splitlines():
                mark, number, at = line.split()
                (self.starts if mark == "s" else self.effects).append((int(number), float(at)))
                if mark == "e":
                    self._done.add(int(number))
        return len(self._done)


def kill(bench: Bench) -> list[Figure]:
    """SIGKILL amid 2,000 jobs of 10 to 30 ms with counted effects; the worker is started again at once.

    Each system as it ships. hive is a whole `hive run`; on the ledger an effect is a row that commits with
    its job, everywhere else a line appended to a file. What has not come back after 60 s counts as lost here;
    some systems bring it back later (celery after an hour, taskiq after ten minutes).
    """
    sheet = Sheet("kill")
    for number in range(bench.rounds):
        for system in ALL:
            if number and not system.is_hive:
                continue  # a minute of waiting each
            try:
                if reason := bench.able(system):
                    raise Failed(reason)
                _once(bench, sheet, system)
            except Failed as error:
                sheet.add(system.name, "lost", "jobs", None, str(error))
            report(f"kill {number + 1}/{bench.rounds} {system.name}: {sheet.last(system.name)}")
    return sheet.figures()


def _once(bench: Bench, sheet: Sheet, system: System) -> None:
    path = bench.path("effects", system)
    trace = Trace(path)
    bench.fresh(system)
    bench.send(system, "number", COUNT, JOB_SECONDS)
    start: Callable[[], AbstractContextManager[Worker]] = partial(
        bench.worker, system, slots=100, effects=path
    )
    if system.is_hive:
        state = bench.state_folder()
        start = partial(bench.hive_run, system, state=state, slots=100, effects=path)
    with start() as worker:
        wait_for(lambda: trace.done() >= KILLED_AT, START_SECONDS, "the first 500 effects", worker)
        worker.kill()
    killed = time.monotonic()
    trace.done()
    active = {number for number, _ in trace.starts} - {number for number, _ in trace.effects}
    if system.carrier == "ledger":
        active -= set(bench.stores.query(NUMBERS) or ())
    patience = QUICK_PATIENCE_SECONDS if bench.quick else PATIENCE_SECONDS
    missed = ""

    def done() -> int:
        # A job of the ledger that was killed between its commit and its note never notes it.
        noted = trace.done()
        return bench.stores.query(ROWS) if system.carrier == "ledger" and noted >= COUNT / 2 else noted

    with start() as worker:
        try:
            wait_for(lambda: done() >= COUNT, patience, "all effects after the kill", worker)
            time.sleep(LATE_SECONDS)
        except Failed as error:
            missed = str(error)
    trace.done()
    effects = Counter(number for number, _ in trace.effects)
    if system.carrier == "ledger":
        effects = Counter(bench.stores.query(NUMBERS) or ())
    sheet.add(system.name, "lost", "jobs", COUNT - len(effects))
    sheet.add(system.name, "doubled", "jobs", sum(1 for count in effects.values() if count > 1))
    sheet.add(system.name, "active at the kill", "jobs", len(active))
    if missed:
        sheet.add(system.name, "all done", "s", None, missed)
    else:
        sheet.add(system.name, "all done", "s", max(at for _, at in trace.effects) - killed)
    again = [(number, at) for number, at in trace.starts if at > killed]
    returned = {number: at for number, at in reversed(again) if number in active}
    if again and active <= returned.keys():
        first = min(at for _, at in again)
        sheet.add(system.name, "active again", "s", max(returned.values(), default=first) - first)
    else:
        sheet.add(system.name, "active again", "s", None)
