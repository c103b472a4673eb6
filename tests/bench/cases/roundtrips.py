"""What a message costs the stores."""

import time
from collections.abc import Mapping

from bench import Bench, Failed, report
from measures import Figure, Sheet
from systems import ALL, System

COUNT = 5_000
QUICK_COUNT = 1_000
SINGLES = 500
TRANSACTIONS = "select xact_commit + xact_rollback from pg_stat_database where datname = current_database()"
STATISTICS_SECONDS = 0.5
"""A backend reports what it did when its client is gone, if not before."""


def roundtrips(bench: Bench) -> list[Figure]:
    """Per empty message: Redis commands, those inside scripts included; reads that Redis served, which is how
    often a client wrote to it; and Postgres transactions. Polling beside the work is included.
    """
    sheet = Sheet("roundtrips")
    count = QUICK_COUNT if bench.quick else COUNT
    for system in ALL:
        try:
            if reason := bench.able(system):
                raise Failed(reason)
            bench.fresh(system)
            before = _counts(bench)
            bench.send(system, "single", SINGLES)
            _note(sheet, system, "publish", before, _counts(bench), SINGLES)
            bench.fresh(system)
            bench.send(system, "fill", "empty", count)
            before = _counts(bench)
            with bench.worker(system, expect=count) as worker:
                worker.notes(120)
            _note(sheet, system, "consume", before, _counts(bench), count)
        except Failed as error:
            sheet.add(system.name, "publish: commands", "per message", None, str(error))
        report(f"roundtrips {system.name}: {sheet.last(system.name)}")
    return sheet.figures()


def _note(
    sheet: Sheet,
    system: System,
    doing: str,
    before: Mapping[str, float],
    after: Mapping[str, float],
    count: int,
) -> None:
    for metric, amount in after.items():
        sheet.add(system.name, f"{doing}: {metric}", "per message", (amount - before[metric]) / count)


def _counts(bench: Bench) -> dict[str, float]:
    time.sleep(STATISTICS_SECONDS)
    client = bench.stores.client
    ours = {"cmdstat_info", "cmdstat_client|setinfo", "cmdstat_flushall"}
    commands = sum(entry["calls"] for name, entry in client.info("commandstats").items() if name not in ours)
    return {
        "commands": commands,
        "reads": client.info("stats")["total_reads_processed"],
        "transactions": bench.stores.query(TRANSACTIONS),
    }
