"""The brokers' queries and scripts: what they say about themselves is true, and nothing lies about unused."""

import re
from importlib.resources import files

from hive.broker.queries import load, moves_of
from hive.broker.stream_scripts import NAMES, SHARED
from hive.states import MOVES, JobState

SQL = {
    file.name.removesuffix(".sql"): load(file.name.removesuffix(".sql"))
    for file in (files("hive.broker") / "sql").iterdir()
    if file.name.endswith(".sql")
}
LUA = {
    file.name.removesuffix(".lua"): file.read_text("utf-8")
    for file in (files("hive.broker") / "lua").iterdir()
    if file.name.endswith(".lua")
}
SOURCES = "\n".join(
    file.read_text("utf-8") for file in files("hive.broker").iterdir() if file.name.endswith(".py")
)


def test_every_query_is_used() -> None:
    for queries in SQL.values():
        for name in queries:
            assert re.search(rf"""["']{name}["']""", SOURCES), name


def test_queries_make_the_allowed_moves_and_no_others() -> None:
    made = {move for queries in SQL.values() for query in queries.values() for move in moves_of(query)}
    allowed = {(before.value, after.value) for before, afters in MOVES.items() for after in afters}
    assert {move for move in made if move[0] != "new"} == allowed


def test_a_query_that_changes_states_says_so() -> None:
    changes = re.compile(r"\bset state = |\bstate, run_at\b")
    for queries in SQL.values():
        for name, query in queries.items():
            assert bool(changes.search(query)) == bool(moves_of(query)), name


def test_a_move_names_the_state_it_comes_from() -> None:
    """Each query that moves a job looks at its state, so that a wrong move changes nothing."""
    states = "|".join(JobState)
    for queries in SQL.values():
        for name, query in queries.items():
            if moves_of(query) and "insert into hive.job " not in query and name != "abandon":
                assert re.search(rf"state (= '({states})'|in \('({states})')", query), name


def test_every_script_is_registered_and_explains_itself() -> None:
    assert set(LUA) == {*NAMES, *SHARED}
    for name, source in LUA.items():
        if name not in SHARED:
            assert re.match(
                r"-- [A-Z].*\n(-- .*\n)*-- KEYS .*\n(--.*\n)*-- ARGV .*\n(--.*\n)*-- RETURNS ", source
            ), name


def test_a_call_begins_with_nothing_of_the_last_one() -> None:
    """What the shared part of the library keeps, and changes, is set anew by ``begin``."""
    begin = LUA["call"].partition("local function begin")[2]
    declared = re.compile(r"^local (?!function)([\w, ]+?)(?: = (.*))?(?: --.*)?$", re.M)
    kept = set[str]()
    for name in SHARED[:-1]:
        for names, made in declared.findall(LUA[name]):
            if not made or made.startswith("{}"):
                kept |= set(names.split(", "))
    assert {"ARGV", "RECORD", "BLOCKED", "identities", "gone", "taken", "answer"} <= kept
    for each in kept:
        assert re.search(rf"[\s,]{each}\b[^=]* = ", begin), each


def test_scripts_use_no_clock_but_redis_own() -> None:
    for name, source in LUA.items():
        assert "os.time" not in source, name
