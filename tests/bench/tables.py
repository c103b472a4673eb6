"""Figures as tables: plain for a terminal, Markdown for the documentation."""

from collections.abc import Sequence
from dataclasses import dataclass

from measures import Figure
from systems import HIVES
from targets import Verdict, best_peer

# Whether more is better; what stands in neither column gets no ratio.
MORE = {"consume", "enqueue", "single", "bulk"}
LESS = {
    "processor",
    "single, processor",
    "bulk, processor",
    "p50",
    "p95",
    "p99",
    "first task runs",
    "ready",
    "proportional",
    "resident",
    "commands",
    "round trips",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A head and rows of equal length; ``notes`` stand below it."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    def plain(self) -> str:
        widths = [max(len(row[at]) for row in (self.head, *self.rows)) for at in range(len(self.head))]

        def line(row: Sequence[str]) -> str:
            cells = [
                cell.ljust(width) if at == 0 else cell.rjust(width)
                for at, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            return "  ".join(cells).rstrip()

        lines = [line(self.head), line(["-" * width for width in widths]), *map(line, self.rows)]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def markdown(self) -> str:
        lines = [
            f"| {' | '.join(self.head)} |",
            f"|{'|'.join(['---', *(['---:'] * (len(self.head) - 1))])}|",
            *(f"| {' | '.join(row)} |" for row in self.rows),
        ]
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines)


def table_of(figures: Sequence[Figure]) -> Table:
    """One case: a row for each system, a column for each metric.

    hive's cells end with the ratio to the best peer.
    """
    systems = list(dict.fromkeys(figure.system for figure in figures))
    columns = list(dict.fromkeys((figure.metric, figure.unit) for figure in figures))
    cells = {(figure.system, figure.metric, figure.unit): figure for figure in figures}
    notes = [f"{figure.system}: {figure.note}" for figure in figures if figure.note]
    return Table(
        head=["", *(f"{metric}, {unit}" for metric, unit in columns)],
        rows=[
            [system, *(_cell(cells.get((system, *column)), figures) for column in columns)]
            for system in systems
        ],
        notes=list(dict.fromkeys(notes)),
    )


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Targets with what was measured."""
    words = {True: "met", False: "NOT MET", None: "–"}
    return Table(
        head=["target", "limit", "measured", ""],
        rows=[[each.what, each.limit, each.value, words[each.met]] for each in verdicts],
    )


def number(value: float) -> str:
    """Four digits at the most, with separators."""
    if value == 0:
        return "0"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _cell(figure: Figure | None, figures: Sequence[Figure]) -> str:
    if figure is None or figure.value is None:
        return "–"
    text = number(figure.value)
    if len(figure.values) > 1:
        text += f" ({number(min(figure.values))}–{number(max(figure.values))})"
    if figure.metric in MORE | LESS and figure.system in {hive.name for hive in HIVES}:
        peer = best_peer(figures, figure.case, figure.metric, largest=figure.metric in MORE)
        if peer is not None and peer[1]:
            text += f" {number(figure.value / peer[1])}×"
    return text
