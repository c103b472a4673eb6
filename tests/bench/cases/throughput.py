"""How many tasks a second one worker process runs: all are waiting before it starts."""

from collections.abc import Sequence

from bench import Bench, Failed, report
from measures import Figure, Sheet
from systems import ALL, HIVES, System

COUNT = 10_000
RUN_SECONDS = 300.0


def empty(bench: Bench) -> list[Figure]:
    """Empty tasks, consumed by one process, from the first execution to the last inside the worker."""
    return _measure(bench, "empty", "empty", (), {"hive": COUNT, "peers": 3_000 if bench.quick else COUNT})


def sleep10(bench: Bench) -> list[Figure]:
    """Tasks that sleep 10 ms, 100 at once: 10,000 a second could run."""
    counts = {"hive": COUNT, "peers": 2_000 if bench.quick else COUNT // 2}
    return _measure(bench, "sleep10", "rest", (0.01,), counts, slots=100)


def sleep100(bench: Bench) -> list[Figure]:
    """Tasks that sleep 100 ms, 100 at once: 1,000 a second could run."""
    counts = {"hive": 3_000, "peers": 1_000 if bench.quick else 3_000}
    return _measure(bench, "sleep100", "rest", (0.1,), counts, slots=100)


def _measure(
    bench: Bench,
    case: str,
    task: str,
    arguments: Sequence[float],
    counts: dict[str, int],
    slots: int | None = None,
) -> list[Figure]:
    sheet = Sheet(case)
    given_up: dict[str, str] = {}
    for number in range(bench.rounds):
        for system in ALL:
            if system.name in given_up:
                continue
            count = counts["hive" if system.is_hive else "peers"]
            try:
                _once(bench, sheet, system, task, arguments, count, slots or system.slots)
            except Failed as error:
                given_up[system.name] = str(error)
                sheet.add(system.name, "consume", "tasks/s", None, str(error))
            report(f"{case} {number + 1}/{bench.rounds} {system.name}: {sheet.last(system.name)}")
    return sheet.figures()


def _once(
    bench: Bench,
    sheet: Sheet,
    system: System,
    task: str,
    arguments: Sequence[float],
    count: int,
    slots: int,
) -> None:
    if reason := bench.able(system):
        raise Failed(reason)
    bench.fresh(system)
    sending = bench.send(system, "fill", task, count, *arguments)
    with bench.worker(system, expect=count, slots=slots) as worker:
        notes = worker.notes(RUN_SECONDS)
    sheet.add(system.name, "consume", "tasks/s", notes.per_second)
    sheet.add(system.name, "processor", "µs/task", 1e6 * notes.processor / count)
    if task == "empty":
        sheet.add(system.name, "enqueue", "tasks/s", count / sending.seconds)
    else:
        sheet.add(system.name, "slots used", "%", 100 * notes.per_second * arguments[0] / slots)
    if task == "empty" and system in HIVES and not bench.quick:
        # Ten times as many, for the rate once it has settled in.
        bench.fresh(system)
        bench.send(system, "fill", task, count * 10)
        with bench.worker(system, expect=count * 10, slots=slots) as worker:
            sheet.add(system.name, "consume 100,000", "tasks/s", worker.notes(RUN_SECONDS).per_second)
