"""Which rules a child's reading needs. That they hold is for the integration tests of isolation to show."""

import os
from pathlib import Path

from pools.fetch import confinement


def test_a_folder_needs_no_rule_below_another_one() -> None:
    folders = ["/a/b", "/usr/lib", "/a-b", "/usr", "/a", "/usr/lib", "/ab/c"]
    assert confinement._outermost(folders) == ["/a-b", "/a", "/ab/c", "/usr"]
    assert confinement._outermost(["/usr", "/", "/etc"]) == ["/"]


def test_links_are_followed_as_realpath_does(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "dangling").symlink_to("nowhere")
    for path in ("folder", "link", "link/..", "dangling", "missing"):
        assert confinement._real(str(tmp_path / path)) == os.path.realpath(tmp_path / path)
