"""How long a message waits at light load: from its sending to the begin of its handler."""

import time

from bench import Bench, Failed, report
from measures import Figure, Sheet, percentile
from systems import ALL

COUNT = 60
SETTLING_SECONDS = 3.0
QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


def pickup(bench: Bench) -> list[Figure]:
    """60 messages, 50 to 150 ms apart, to an idle worker: milliseconds from send to handler start."""
    sheet = Sheet("pickup")
    for number in range(bench.rounds):
        for system in ALL:
            try:
                if reason := bench.able(system):
                    raise Failed(reason)
                bench.fresh(system)
                with bench.worker(system, expect=COUNT) as worker:
                    time.sleep(SETTLING_SECONDS)  # connected, listening, and its start is not measured
                    bench.send(system, "paced", COUNT)
                    delays = worker.notes(20).delays
                for name, share in QUANTILES:
                    sheet.add(system.name, name, "ms", 1000 * percentile(delays, share))
            except Failed as error:
                sheet.add(system.name, "p50", "ms", None, str(error))
            report(f"pickup {number + 1}/{bench.rounds} {system.name}: {sheet.last(system.name)}")
    return sheet.figures()
