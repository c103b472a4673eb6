"""Patterns over relative paths: ``*`` and ``?`` stay within a name, ``**`` crosses folders.

Python 3.11's ``fnmatch`` lets ``*`` cross slashes, and its ``glob`` walks by itself; so a pattern is cut at
its slashes, ``fnmatch`` translates each part, and the parts are matched in turn.
"""

import fnmatch
import re
from collections.abc import Sequence
from functools import lru_cache

_ANY_DEPTH = "**"


class Glob:
    """One pattern. Without a slash it fits a name at any depth, as in a .gitignore."""

    def __init__(self, pattern: str) -> None:
        parts = [part for part in pattern.split("/") if part not in ("", ".")]
        if "/" not in pattern.rstrip("/"):
            parts.insert(0, _ANY_DEPTH)
        self.literals = frozenset(part for part in parts if not set(part) & set("*?["))
        self._parts = tuple(None if part == _ANY_DEPTH else _compiled(part) for part in parts)

    def fits(self, path: Sequence[str]) -> bool:
        """Whether the pattern fits the whole of a path, given as its parts."""
        # The set of positions in the pattern that can have been reached: linear, however many ** there are.
        reached = self._past_any({0})
        for name in path:
            following: set[int] = set()
            for position in reached:
                if position == len(self._parts):
                    continue
                part = self._parts[position]
                if part is None:
                    following.add(position)
                elif part.match(name):
                    following.add(position + 1)
            reached = self._past_any(following)
            if not reached:
                return False
        return len(self._parts) in reached

    def _past_any(self, positions: set[int]) -> set[int]:
        """``**`` also fits no folder at all."""
        reached = set(positions)
        for position in positions:
            behind = position
            while behind < len(self._parts) and self._parts[behind] is None:
                behind += 1
                reached.add(behind)
        return reached


@lru_cache(maxsize=256)
def _compiled(part: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(part))
