"""How long a process takes from its start to its first task."""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path

from bench import Bench, Failed, report, wait_for
from measures import Figure, Sheet
from systems import ALL, HIVE_LEDGER, HIVE_STREAM

START_SECONDS = 60.0


def start(bench: Bench) -> list[Figure]:
    """From the start of the process to its first task, which waits already; the stores are up and migrated.

    `hive run` is the whole default topology with its model server; `hive stream` and `hive ledger` are a
    single pool in a script, the counterpart of the others' workers.
    """
    sheet = Sheet("start")
    for number in range(bench.rounds):
        _whole_hive(bench, sheet)
        report(f"start {number + 1}/{bench.rounds} hive run: {sheet.last('hive run')}")
        for system in ALL:
            try:
                if reason := bench.able(system):
                    raise Failed(reason)
                bench.fresh(system)
                bench.send(system, "fill", "empty", 1)
                began = time.monotonic()
                with bench.worker(system, expect=1) as worker:
                    notes = worker.notes(START_SECONDS)
                sheet.add(system.name, "first task runs", "s", notes.first - began)
            except Failed as error:
                sheet.add(system.name, "first task runs", "s", None, str(error))
            report(f"start {number + 1}/{bench.rounds} {system.name}: {sheet.last(system.name)}")
    return sheet.figures()


def _whole_hive(bench: Bench, sheet: Sheet) -> None:
    system = HIVE_STREAM
    try:
        bench.fresh(HIVE_LEDGER)
        bench.send(system, "fill", "empty", 1)
        state = bench.state_folder()
        began = time.monotonic()
        with bench.hive_run(system, state=state, slots=4, expect=1) as worker:
            wait_for(lambda: answers(state), START_SECONDS, "ready", worker)
            ready = time.monotonic() - began
            notes = worker.notes(START_SECONDS)
        sheet.add("hive run", "first task runs", "s", notes.first - began)
        sheet.add("hive run", "ready", "s", ready)
    except Failed as error:
        sheet.add("hive run", "first task runs", "s", None, str(error))


def answers(state: Path) -> bool:
    """Whether the hive on this state folder says that it is ready."""
    try:
        at = json.loads((state / "http.json").read_text())
        with urllib.request.urlopen(f"http://{at['host']}:{at['port']}/readyz", timeout=5) as answer:
            return answer.status == 200
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except (OSError, ValueError, KeyError):
        return False
