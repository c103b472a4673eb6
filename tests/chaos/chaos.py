"""``make chaos``: every scenario, or one, against hive or a peer. A table, and rows in .bench/chaos.json.

Exit code 0 when every verdict is clean, else 1.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "support")]

from arena import Ground  # noqa: E402
from hive.settings import Log  # noqa: E402
from peer import PEERS, install  # noqa: E402
from scenarios import PEER_SCENARIOS, SCENARIOS, Scenario  # noqa: E402
from supervisor.logs import configure  # noqa: E402
from trial import Trial, Verdict  # noqa: E402

RESULTS = HERE.parent.parent / ".bench" / "chaos.json"
COLUMNS = (
    "scenario",
    "carrier",
    "seed",
    "lost",
    "doubled",
    "slots_leaked",
    "connections_leaked",
    "recovery_seconds",
    "reruns",
    "stale",
    "jobs",
    "per_second",
)
KEY = ("system", "scenario", "carrier")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", choices=[*SCENARIOS], action="append", help="only this one")
    parser.add_argument("--carrier", choices=["ledger", "stream"], help="only on this one")
    parser.add_argument("--seed", type=int, default=1, help="which victim, and when")
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--lease", type=float, default=3.0, help="seconds")
    parser.add_argument("--peer", choices=PEERS, help="against this one instead of hive")
    return parser.parse_args()


async def run(options: argparse.Namespace) -> list[Verdict]:
    chosen = [SCENARIOS[name] for name in options.scenario or (PEER_SCENARIOS if options.peer else SCENARIOS)]
    if options.peer:
        install()
    verdicts: list[Verdict] = []
    print(line(COLUMNS))
    with TemporaryDirectory(prefix="chaos-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # the servers run as another user where we are root
        async with Ground.open(folder) as ground:
            for scenario in chosen:
                for carrier in scenario.carriers:
                    if options.carrier in (None, carrier) and (carrier == "stream" or not options.peer):
                        verdicts.append(await one(ground, scenario, carrier, options))
                        show(verdicts[-1])
    return verdicts


async def one(ground: Ground, scenario: Scenario, carrier: str, options: argparse.Namespace) -> Verdict:
    async with ground.arena() as arena:
        trial = Trial(
            scenario,
            carrier,
            arena,
            seed=options.seed,
            jobs=options.jobs,
            lease_seconds=options.lease,
            peer=options.peer,
        )
        try:
            verdict = await trial.run()
        except* AssertionError as errors:  # it could not be brought to its end
            remarks = tuple(str(error) for error in errors.exceptions)
            verdict = trial.abandoned(remarks)
        if not verdict.clean:
            keep(arena.folder, verdict)
        return verdict


def show(verdict: Verdict) -> None:
    row = {**verdict.row(), "carrier": verdict.carrier if verdict.system == "hive" else verdict.system}
    print(line(row[column] for column in COLUMNS), "" if verdict.clean else "  ✗", flush=True)
    for remark in verdict.remarks:
        print(f"    {remark}", flush=True)


def line(cells: Iterable[Any]) -> str:
    widths = (26, 8, 5, 5, 8, 13, 19, 17, 7, 6, 6, 10)
    texts = [f"{cell:.2f}" if isinstance(cell, float) else str(cell) for cell in cells]
    return " ".join(text.ljust(width) for text, width in zip(texts, widths, strict=True)).rstrip()


def keep(folder: Path, verdict: Verdict) -> None:
    """What the consumers of a failed trial logged."""
    kept = (
        RESULTS.parent
        / "chaos-logs"
        / f"{verdict.scenario}-{verdict.system}-{verdict.carrier}-{verdict.seed}"
    )
    kept.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("consumer-*.*"):
        (kept / path.name).write_bytes(path.read_bytes())
    print(f"    logs: {kept.relative_to(RESULTS.parent.parent)}")


def save(verdicts: Sequence[Verdict], *, whole: bool) -> None:
    """A whole run replaces what was there; a part of one replaces its own rows."""
    rows = [verdict.row() for verdict in verdicts]
    if not whole and RESULTS.exists():
        new = {tuple(row[key] for key in KEY) for row in rows}
        old = [row for row in json.loads(RESULTS.read_text()) if tuple(row[key] for key in KEY) not in new]
        rows = old + rows
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")


def main() -> int:
    options = arguments()
    configure(Log(level="warning"))
    verdicts = asyncio.run(run(options))
    save(verdicts, whole=not (options.scenario or options.carrier or options.peer))
    unclean = [verdict for verdict in verdicts if not verdict.clean]
    print(f"{len(verdicts)} verdicts, {len(unclean)} of them not clean; see .bench/chaos.json")
    return 1 if unclean else 0


if __name__ == "__main__":
    sys.exit(main())
