"""What the files connector may read below."""

import os
from pathlib import Path

import pytest

from hive.errors import ConfigurationError, InvalidInput
from supervisor.http.roots import FileRoots


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    (folder / "deep").mkdir(parents=True)
    return folder


def test_a_path_below_a_root_is_allowed_and_resolved(state: Path, docs: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(docs)
    roots = FileRoots((link,), state)
    assert roots.check(link / "deep") == docs / "deep"
    assert roots.check(docs) == docs


def test_a_neighbour_whose_name_begins_alike_is_no_child(state: Path, docs: Path, tmp_path: Path) -> None:
    (tmp_path / "docs-secret").mkdir()
    with pytest.raises(InvalidInput, match="none of the folders"):
        FileRoots((docs,), state).check(tmp_path / "docs-secret")


@pytest.mark.parametrize("escape", ["../other", "deep/../../other", "out"])
def test_a_way_out_of_the_root_is_refused(state: Path, docs: Path, tmp_path: Path, escape: str) -> None:
    (tmp_path / "other").mkdir()
    (docs / "out").symlink_to(tmp_path / "other")
    with pytest.raises(InvalidInput) as refused:
        FileRoots((docs,), state).check(f"{docs}/{escape}")
    assert refused.value.field == "config.path"


def test_existence_is_told_only_below_a_root(state: Path, docs: Path, tmp_path: Path) -> None:
    roots = FileRoots((docs,), state)
    with pytest.raises(InvalidInput, match="does not exist"):
        roots.check(docs / "missing")
    for outside in (tmp_path / "missing", tmp_path):
        with pytest.raises(InvalidInput, match="none of the folders"):
            roots.check(outside)


def test_the_state_folder_is_refused_even_below_a_root(state: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(state)
    roots = FileRoots((tmp_path,), state)
    for path in (state, state / "token", tmp_path / "alias", f"{tmp_path}/./state"):
        with pytest.raises(InvalidInput, match="state folder"):
            roots.check(path)
        with pytest.raises(InvalidInput, match="state folder"):
            roots.add(path)


@pytest.mark.parametrize("path", ["", "docs", "./docs", "/tmp/\x00"])
def test_what_is_no_whole_path_is_refused(state: Path, path: str) -> None:
    with pytest.raises(InvalidInput):
        FileRoots((), state).check(path)


def test_an_added_root_is_kept_for_the_next_start(state: Path, docs: Path) -> None:
    assert FileRoots((), state).add(docs) == docs
    again = FileRoots((), state)
    assert again.check(docs / "deep") == docs / "deep"
    assert (state / "roots.json").stat().st_mode & 0o777 == 0o600
    again.add(docs / "deep")  # below one that is there already: nothing to add
    assert again.all() == (docs,)


def test_a_folder_that_does_not_exist_is_not_added(state: Path, tmp_path: Path) -> None:
    roots = FileRoots((), state)
    with pytest.raises(InvalidInput, match="nowhere"):
        roots.add(tmp_path / "nowhere")
    assert roots.all() == ()


def test_a_broken_list_is_said_by_name(state: Path) -> None:
    (state / "roots.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"roots\.json"):
        FileRoots((), state).all()


def test_a_list_that_cannot_be_written_is_said(state: Path, docs: Path) -> None:
    (state / "roots.json").write_text('{"roots": []}')
    (state / f".roots.json.{os.getpid()}").symlink_to("/dev/full")
    with pytest.raises(ConfigurationError, match="No space left"):
        FileRoots((), state).add(docs)
    assert FileRoots((), state).all() == ()
