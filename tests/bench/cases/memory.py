"""What an idle hive weighs beside the herd of workers that it replaces."""

import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from bench import Bench, Failed, report, wait_for
from cases.starting import START_SECONDS, answers
from measures import Figure, Sheet
from systems import HIVE_STREAM, PEERS

from hive.settings import default_pools

CELERY = next(peer for peer in PEERS if peer.name == "celery")
SETTLING_SECONDS = 10.0
STEADY = 0.01
MODEL_SERVER = "model_server.py"
MIB = 2**20


def memory(bench: Bench) -> list[Figure]:
    """Idle, in proportional set size: `hive run` with its default pools and its zygote, without stores and
    model server; eight celery workers with threads at the same sizes, and beat.
    """
    sheet = Sheet("memory")
    for number in range(bench.rounds):
        for name, weigh in (("hive", _hive), ("celery herd", _herd)):
            try:
                proportional, resident, processes = weigh(bench)
            except Failed as error:
                sheet.add(name, "proportional", "MiB", None, str(error))
            else:
                sheet.add(name, "proportional", "MiB", proportional / MIB)
                sheet.add(name, "resident", "MiB", resident / MIB)
                sheet.add(name, "processes", "", processes)
            report(f"memory {number + 1}/{bench.rounds} {name}: {sheet.last(name)}")
    return sheet.figures()


def _hive(bench: Bench) -> tuple[int, int, int]:
    if os.geteuid() != 0:
        raise Failed("hive's processes cannot be dumped, so only root may weigh them")
    bench.fresh(HIVE_STREAM)
    state = bench.state_folder()
    with bench.hive_run(HIVE_STREAM, state=state, slots=0) as worker:
        wait_for(lambda: answers(state), START_SECONDS, "ready", worker)
        return _settled(
            lambda: [pid for pid in tree_of(worker.process.pid) if MODEL_SERVER not in _name(pid)]
        )


def _herd(bench: Bench) -> tuple[int, int, int]:
    if reason := bench.able(CELERY):
        raise Failed(reason)
    bench.fresh(CELERY)
    celery = bench.environments.program("celery", "celery")
    environment = bench.environment(CELERY)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                bench.process(
                    [
                        *(celery, "-A", "celery_app", "worker", "-P", "threads", "-c", str(pool.slots)),
                        *("--prefetch-multiplier", str(max(1, pool.prefetch)), "-n", f"{name}@bench"),
                        *("-Q", ",".join((*pool.ledger, *pool.stream)), "--loglevel", "WARNING"),
                    ],
                    environment,
                    CELERY,
                )
            )
            for name, pool in default_pools().items()
        ]
        schedule = bench.path("schedule", CELERY)
        beat = [celery, "-A", "celery_app", "beat", "-s", str(schedule), "--loglevel", "WARNING"]
        workers.append(stack.enter_context(bench.process(beat, environment, CELERY)))
        return _settled(lambda: [pid for worker in workers for pid in tree_of(worker.process.pid)])


def _settled(processes: Callable[[], list[int]]) -> tuple[int, int, int]:
    """Weigh until it changes no more: (proportional, resident) bytes and the number of processes."""
    deadline = time.monotonic() + 90
    before = 0
    while True:
        time.sleep(SETTLING_SECONDS)
        pids = processes()
        weights = [_weight(pid) for pid in pids]
        proportional = sum(weight[0] for weight in weights)
        if abs(proportional - before) <= STEADY * proportional or time.monotonic() > deadline:
            return proportional, sum(weight[1] for weight in weights), len(pids)
        before = proportional


def tree_of(pid: int) -> list[int]:
    """A process and all its descendants."""
    found = [pid]
    for each in found:
        for thread in Path(f"/proc/{each}/task").iterdir():
            try:
                found += [int(child) for child in (thread / "children").read_text().split()]
            except OSError:
                continue
    return found


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace")


def _weight(pid: int) -> tuple[int, int]:
    sizes = {"Pss": 0, "Rss": 0}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0]) * 1024
    return sizes["Pss"], sizes["Rss"]
