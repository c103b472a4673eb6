"""What people and programs read. Tables come from rich, which is imported only when one is printed."""

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from supervisor.cli.plain_text import clean

Row = Mapping[str, Any]
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


def say(text: str) -> None:
    """A line on standard output."""
    click.echo(clean(text))


def note(text: str) -> None:
    """A line on standard error: what a program reading the output must not get."""
    click.echo(clean(text), err=True)


def print_json(value: object) -> None:
    """``value`` for programs."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2))


def print_rows(rows: Iterable[Row], columns: Sequence[str], *, as_json: bool, empty: str) -> None:
    """``rows`` as JSON, or as a table of these ``columns``; ``empty`` is said when there are none."""
    listed = list(rows)
    if as_json:
        print_json(listed)
    elif not listed:
        note(empty)
    else:
        _print_table(listed, columns)


def print_fields(row: Row, *, as_json: bool) -> None:
    """One thing, a field a line."""
    if as_json:
        print_json(row)
        return
    width = max(len(name) for name in row)
    for name, value in row.items():
        click.echo(f"{name.replace('_', ' '):<{width}}  {clean(shown(value))}")


def shown(value: object) -> str:
    """``value`` for a person."""
    match value:
        case None:
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3g}"
        case str():
            return f"{value[:10]} {value[11:19]}" if _TIME.fullmatch(value) else value
        case dict() | list():
            return json.dumps(value, ensure_ascii=False)
        case _:
            return str(value)


def _print_table(rows: Sequence[Row], columns: Sequence[str]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # Folded to the width of a terminal, but never when piped: `hive jobs | grep` must see whole lines.
    terminal = sys.stdout.isatty()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    # Room is scarce in a terminal: a column in which nothing stands is left out.
    kept = [
        column
        for column in columns
        if column == columns[0] or any(row.get(column) is not None for row in rows)
    ]
    for position, column in enumerate(kept):
        numeric = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(
            column.replace("_", " "),
            justify="right" if numeric else "left",
            # What does not fit is folded, not cut; the first column, which one copies, stays whole.
            no_wrap=not terminal or position == 0,
            overflow="fold",
        )
    for row in rows:
        # Text, not str: a name with [brackets] is a name, and no markup.
        table.add_row(*(Text(clean(shown(row.get(column))).replace("\n", " ")) for column in kept))
    Console(width=None if terminal else 4096, highlight=False).print(table)
