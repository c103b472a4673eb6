"""Patterns over relative paths."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.ingest.connectors.glob import Glob


@pytest.mark.parametrize(
    ("pattern", "fitting", "other"),
    [
        ("*.md", ["a.md", "x/a.md", "x/y/a.md"], ["a.txt", "a.md/x"]),
        ("./*.md", ["a.md"], ["x/a.md"]),
        ("docs/*.md", ["docs/a.md"], ["a.md", "docs/x/a.md", "x/docs/a.md"]),
        ("docs/**", ["docs", "docs/a", "docs/x/y"], ["doc/a", "x/docs/a"]),
        ("**/*.html", ["a.html", "x/y/a.html"], ["a.htm"]),
        ("a/**/b/*.py", ["a/b/c.py", "a/x/y/b/c.py"], ["a/b/x/c.py", "b/c.py"]),
        ("draft?", ["draft1", "x/draft2"], ["draft", "draft12"]),
        ("[ab].txt", ["a.txt"], ["c.txt"]),
        ("drafts/", ["drafts", "x/drafts"], ["draft"]),
    ],
)
def test_patterns(pattern: str, fitting: list[str], other: list[str]) -> None:
    glob = Glob(pattern)
    for path in fitting:
        assert glob.fits(path.split("/")), path
    for path in other:
        assert not glob.fits(path.split("/")), path


def test_many_stars_are_quick() -> None:
    assert not Glob("**/a/" * 40 + "b").fits(["a"] * 400)


@given(st.lists(st.sampled_from(["a", "b", "c.md"]), min_size=1, max_size=6))
def test_a_path_fits_itself_and_everything_fits_any(path: list[str]) -> None:
    assert Glob("./" + "/".join(path)).fits(path)
    assert Glob("**").fits(path)
    assert Glob("**/" + path[-1]).fits(path)
