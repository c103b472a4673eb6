"""The named queries beside this file, in ``sql/``.

A file holds queries, each under a line ``-- name: x``. A line ``-- moves: a -> b | c, d -> e`` below it
states the moves of jobs that the query makes; a test compares them with the table in ``hive.states``.
"""

import re
from functools import cache
from importlib.resources import files

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)
_MOVES = re.compile(r"^-- moves: (.+)$", re.MULTILINE)


@cache
def load(file: str) -> dict[str, str]:
    """The queries of ``sql/<file>.sql`` by name, without a closing semicolon."""
    text = (files("hive.broker") / "sql" / f"{file}.sql").read_text("utf-8")
    parts = _NAME.split(text)[1:]
    return {name: body.strip().removesuffix(";") for name, body in zip(parts[::2], parts[1::2], strict=True)}


def moves_of(query: str) -> set[tuple[str, str]]:
    """The moves that a query states in its ``-- moves:`` line, as pairs of state names."""
    pairs: set[tuple[str, str]] = set()
    for line in _MOVES.findall(query):
        for clause in line.split(","):
            before, _, afters = clause.partition("->")
            pairs |= {(before.strip(), after.strip()) for after in afters.split("|")}
    return pairs
