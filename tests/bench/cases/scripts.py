"""Cases that measure a part of hive on its own, in a script."""

import json
import subprocess
import sys
from collections.abc import Mapping

from bench import APPS, Bench, Failed, report
from measures import Figure, Sheet
from systems import HIVE_STREAM

SCRIPT_SECONDS = 240.0


def child(bench: Bench) -> list[Figure]:
    """A child process for a crawl, with the parsers loaded: from asking for it to its first word.

    Beside it the standard library's ways: fork server with the same libraries preloaded, spawn without any.
    """
    sheet = Sheet("child")
    for number in range(bench.rounds):
        try:
            said = _said(bench, "hive_children.py", "20" if bench.quick else "60")
        except Failed as error:
            sheet.add("hive zygote", "p50", "ms", None, str(error))
            continue
        for system, figures in said.items():
            for metric, value in figures.items():
                sheet.add(system, metric, "ms", value)
            report(f"child {number + 1}/{bench.rounds} {system}: {sheet.last(system)}")
    return sheet.figures()


def beat(bench: Bench) -> list[Figure]:
    """10,000 tenants × 14 schedules on a stream: share of one core, latest tick, time to rebuild the table.

    Once with a hundredth of the tenants at work, the others passed over but for a tick every 20 minutes; once
    with all of them.
    """
    sheet = Sheet("beat")
    units = {"processor": "%", "latest tick": "s", "rebuild": "ms", "ticks": "1/s"}
    bench.fresh(HIVE_STREAM)
    try:
        said = _said(bench, "hive_beat.py", "20" if bench.quick else "40")
    except Failed as error:
        sheet.add("hive, 1 % at work", "processor", "%", None, str(error))
        said = {}
    for system, figures in said.items():
        for metric, value in figures.items():
            sheet.add(system, metric, units[metric], value)
        report(f"beat {system}: {sheet.last(system)}")
    return sheet.figures()


def _said(bench: Bench, script: str, *arguments: str) -> Mapping[str, Mapping[str, float]]:
    log_path = bench.path("log", HIVE_STREAM)
    with log_path.open("wb") as log:
        try:
            done = subprocess.run(
                [sys.executable, script, *arguments],
                cwd=APPS,
                env=bench.environment(HIVE_STREAM),
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                timeout=SCRIPT_SECONDS,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"not within {SCRIPT_SECONDS:.0f} s") from None
    if done.returncode:
        raise Failed((log_path.read_text().strip().splitlines() or ["?"])[-1][:200])
    return json.loads(done.stdout.strip().splitlines()[-1])
