"""Copying a part of a documentation tree."""

import shutil
from collections.abc import Callable
from pathlib import Path


def copy_pages(source: Path, target: Path, keep: Callable[[Path], bool] = lambda page: True) -> list[Path]:
    """Copy the HTML pages that ``keep`` allows (by their relative path); returns the copies."""
    copies: list[Path] = []
    for page in sorted(source.rglob("*.html")):
        relative = page.relative_to(source)
        if keep(relative):
            copy = target / relative
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(page, copy)
            copies.append(copy)
    return copies
