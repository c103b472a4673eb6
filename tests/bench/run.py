"""Measure hive and its peers in one session, and say which targets are met.

Prints the tables and writes .bench/latest.json. Unless --quick, it also writes docs/benchmarks.md, from the
newest full figures of each case.
"""

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog
from bench import Bench
from cases import (
    ceiling,
    killing,
    memory,
    neighbours,
    pickup,
    publishing,
    roundtrips,
    scale,
    scripts,
    starting,
    throughput,
)
from measures import Figure, write_latest
from report import Session

ROOT = Path(__file__).parents[2] / ".bench"

CASES: Mapping[str, Callable[[Bench], list[Figure]]] = {
    "empty": throughput.empty,
    "sleep10": throughput.sleep10,
    "sleep100": throughput.sleep100,
    "publish": publishing.publish,
    "pickup": pickup.pickup,
    "ceiling": ceiling.ceiling,
    "roundtrips": roundtrips.roundtrips,
    "neighbour": neighbours.neighbour,
    "kill": killing.kill,
    "scale": scale.scale,
    "memory": memory.memory,
    "start": starting.start,
    "child": scripts.child,
    "beat": scripts.beat,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--cases", default="", help=f"some of {', '.join(CASES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="one round, and fewer tasks for slow systems")
    options = parser.parse_args()
    names = [name.strip() for name in options.cases.split(",") if name.strip()] or list(CASES)
    if unknown := [name for name in names if name not in CASES]:
        parser.error(f"no such case: {', '.join(unknown)}; there are {', '.join(CASES)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    bench = Bench(ROOT, quick=options.quick)
    titles = {name: " ".join((case.__doc__ or "").split()) for name, case in CASES.items()}
    session = Session(ROOT, titles, quick=options.quick)
    try:
        bench.stores.start()
        for name in names:
            began, load = time.monotonic(), os.getloadavg()[0]
            session.add(name, CASES[name](bench), time.monotonic() - began, load)
    finally:
        bench.end()
        write_latest(session.figures, ROOT / "latest.json")
        print(session.text())
    if not options.quick:
        session.write_docs(ROOT.parent / "docs" / "benchmarks.md", bench.environments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
