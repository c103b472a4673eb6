"""What was measured: figures by case, system and metric, each with its rounds."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric of one system. ``values``: one of each round; none when it could not be measured.

    ``note``: why not, or under which conditions.
    """

    case: str
    system: str
    metric: str
    unit: str
    values: Sequence[float] = ()
    note: str = ""

    @property
    def value(self) -> float | None:
        return median(self.values) if self.values else None


@dataclass(slots=True)
class Sheet:
    """Gathers values of several rounds into figures, in the order they first came."""

    case: str
    _values: dict[tuple[str, str, str], list[float]] = field(
        default_factory=dict[tuple[str, str, str], list[float]]
    )
    _notes: dict[tuple[str, str, str], str] = field(default_factory=dict[tuple[str, str, str], str])

    def add(self, system: str, metric: str, unit: str, value: float | None, note: str = "") -> None:
        """One round's value; None with a note when there is none."""
        key = (system, metric, unit)
        values = self._values.setdefault(key, [])
        if value is not None:
            values.append(value)
        if note:
            self._notes[key] = note

    def last(self, system: str) -> str:
        """The newest values of a system, for a line of progress."""
        return ", ".join(
            f"{metric} {values[-1]:,.4g} {unit}" if values else self._notes.get((name, metric, unit), "")
            for (name, metric, unit), values in self._values.items()
            if name == system
        )

    def figures(self) -> list[Figure]:
        return [
            Figure(
                case=self.case,
                system=system,
                metric=metric,
                unit=unit,
                values=tuple(values),
                note=self._notes.get((system, metric, unit), ""),
            )
            for (system, metric, unit), values in self._values.items()
        ]


def value_of(figures: Iterable[Figure], case: str, system: str, metric: str) -> float | None:
    """The median of that metric, or None."""
    for figure in figures:
        if (figure.case, figure.system, figure.metric) == (case, system, metric):
            return figure.value
    return None


def write_latest(figures: Iterable[Figure], path: Path) -> None:
    """The plain list that other programs read. ``value`` is null where nothing could be measured."""
    rows = [
        {
            "case": figure.case,
            "system": figure.system,
            "metric": figure.metric,
            "value": figure.value,
            "unit": figure.unit,
        }
        for figure in figures
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n")


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` lie, by the nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(share * len(ordered) + 0.5) - 1))]
