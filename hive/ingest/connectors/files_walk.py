"""The files below a folder, in one order that never depends on the file system.

The order is that of the paths' parts, compared as bytes; so "everything up to this path" is a position that
one can go on from.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hive.ingest.connectors.glob import Glob
from hive.ingest.parsing.reader import FORMATS

# Never documents: dependencies, caches; and the sources that Sphinx copies beside the pages it made of them.
_SKIPPED_FOLDERS = frozenset(("node_modules", "__pycache__", "_sources", "_static"))

Parts = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A file to look at: its path below the root, as parts."""

    parts: Parts


@dataclass(frozen=True, slots=True)
class Unlistable:
    """A folder that could not be listed."""

    parts: Parts
    error: OSError


@dataclass(frozen=True, slots=True)
class Passed:
    """So many entries were looked at without finding a file: a sign of life."""

    entries: int


class Selection:
    """Which files are wanted."""

    def __init__(self, include: Sequence[str], exclude: Sequence[str]) -> None:
        self._include = [Glob(pattern) for pattern in include]
        self._exclude = [Glob(pattern) for pattern in exclude]
        self._named = frozenset[str]().union(*(glob.literals for glob in self._include))

    def wants_file(self, path: Sequence[str]) -> bool:
        """By ``include`` if there is one, else by its ending; a hidden one only if a pattern names it."""
        if any(glob.fits(path) for glob in self._exclude):
            return False
        if self._include:
            return any(glob.fits(path) for glob in self._include) and not self._hidden(path[-1])
        return not self._hidden(path[-1]) and os.path.splitext(path[-1].lower())[1] in FORMATS

    def enters(self, path: Sequence[str]) -> bool:
        """Whether to look into a folder: not where ``exclude`` fits it (``drafts``, ``drafts/**``)."""
        name = path[-1]
        if (self._hidden(name) or name in _SKIPPED_FOLDERS) and name not in self._named:
            return False
        return not any(glob.fits(path) for glob in self._exclude)

    def _hidden(self, name: str) -> bool:
        return name.startswith(".") and name not in self._named


def walk(root: bytes, selection: Selection, after: Parts | None) -> Iterator[Found | Unlistable | Passed]:
    """Files below ``root`` behind ``after``. Symbolic links to folders are not entered.

    (What they lead to is walked by its own path if it is below the root, and is none of our business if not;
    so there are no loops either.)
    """
    stack: list[tuple[Parts, list[tuple[bytes, bool]]]] = []
    passed = 0

    def listed(parts: Parts) -> list[tuple[bytes, bool]]:
        """Name and whether it is a folder; last one first, so that ``pop`` gives the next."""
        entries: list[tuple[bytes, bool]] = []
        with os.scandir(os.path.join(root, *parts)) as scan:
            entries.extend((entry.name, entry.is_dir(follow_symlinks=False)) for entry in scan)
        entries.sort(reverse=True)
        return entries

    stack.append(((), listed(())))  # the root itself must be readable: its error is the caller's
    while stack:
        above, entries = stack[-1]
        if not entries:
            stack.pop()
            continue
        name, is_folder = entries.pop()
        parts = (*above, name)
        passed += 1
        if passed >= 1000:
            yield Passed(passed)
            passed = 0
        if after is not None and parts <= after and parts != after[: len(parts)]:
            continue  # it and all below it lie before the position
        text = [os.fsdecode(part) for part in parts]
        if is_folder:
            if selection.enters(text):
                try:
                    stack.append((parts, listed(parts)))
                except OSError as error:
                    yield Unlistable(parts, error)
        elif (after is None or parts > after) and selection.wants_file(text):
            passed = 0
            yield Found(parts)
