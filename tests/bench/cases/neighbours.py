"""How long a tenant's single job waits beside a tenant with a large backlog."""

import time

from bench import Bench, Failed, report
from measures import Figure, Sheet
from systems import HIVES, PEERS, System

SLOTS = 24
PREFETCH = 8
JOBS = 10_000
PEER_JOBS = 2_400
JOB_SECONDS = 0.02
SAMPLES = 5
PAUSE_SECONDS = 0.4
ALONE, ONE, MANY = "wait alone", "wait beside 1 busy", "wait beside 100 busy"


def neighbour(bench: Bench) -> list[Figure]:
    """24 slots. A has 10,000 jobs of 20 ms, B sends one job at a time, five times: the longest wait of B.

    Bounds: 3 × 20 ms beside one busy tenant, (2 × slots + 100) ÷ slots × 20 ms beside a hundred, each plus
    what B waits alone. The peers know no tenants: there, B's job stands behind 2,400 of A's.
    """
    sheet = Sheet("neighbour")
    for number in range(bench.rounds):
        for system in HIVES:
            try:
                _hive(bench, sheet, system)
            except Failed as error:
                sheet.add(system.name, ALONE, "ms", None, str(error))
            report(f"neighbour {number + 1}/{bench.rounds} {system.name}: {sheet.last(system.name)}")
        for system in PEERS:
            if number:
                continue
            try:
                if reason := bench.able(system):
                    raise Failed(reason)
                bench.fresh(system)
                bench.send(system, "fill", "rest", PEER_JOBS, JOB_SECONDS)
                with bench.worker(system, expect_delays=1, slots=SLOTS) as worker:
                    bench.send(system, "paced", 1)
                    sheet.add(system.name, ONE, "ms", 1000 * worker.notes(120).delays[0])
            except Failed as error:
                sheet.add(system.name, ONE, "ms", None, str(error))
            report(f"neighbour {number + 1}/{bench.rounds} {system.name}: {sheet.last(system.name)}")
    return sheet.figures()


def _hive(bench: Bench, sheet: Sheet, system: System) -> None:
    bench.fresh(system)
    alone = _longest_wait(bench, system, busy=0)
    sheet.add(system.name, ALONE, "ms", alone)
    for busy, metric, bound in (
        (1, ONE, 3 * JOB_SECONDS),
        (100, MANY, (2 * SLOTS + 100) / SLOTS * JOB_SECONDS),
    ):
        bench.fresh(system)
        bench.send(system, "fill", JOBS, busy, JOB_SECONDS, script="hive_neighbours.py")
        sheet.add(system.name, metric, "ms", _longest_wait(bench, system, busy=busy))
        sheet.add(system.name, f"{metric}, bound", "ms", 1000 * bound + alone)
    bench.fresh(system)
    jobs = 3_000 if bench.quick else JOBS
    bench.send(system, "fill", jobs, 1, JOB_SECONDS, script="hive_neighbours.py")
    with bench.worker(system, expect=jobs, slots=SLOTS, prefetch=PREFETCH) as worker:
        notes = worker.notes(120)
    share = notes.busy / (SLOTS * (notes.last - notes.first))
    sheet.add(system.name, "slots used alone", "%", 100 * share)


def _longest_wait(bench: Bench, system: System, *, busy: int) -> float:
    """Milliseconds."""
    with bench.worker(system, expect_delays=SAMPLES, slots=SLOTS, prefetch=PREFETCH) as worker:
        time.sleep(2 if busy else 3)  # the worker is up, and A's work has begun
        bench.send(system, "single", SAMPLES, PAUSE_SECONDS, script="hive_neighbours.py")
        return 1000 * max(worker.notes(60).delays)
