"""Where files may be read: asked of the kernel about the open file, since a path may change meanwhile."""

import os
import stat
from collections.abc import Sequence


class Fence:
    """Where files may be read, by their real place: below one of ``roots``, not below one of ``refused``."""

    def __init__(self, roots: Sequence[str], refused: Sequence[str]) -> None:
        self._roots = [os.path.realpath(os.fsencode(root)) for root in roots]
        self._refused = [os.path.realpath(os.fsencode(path)) for path in refused]

    def is_refused(self, real: bytes) -> bool:
        """Whether it lies in a place that is never read."""
        return any(_within(real, path) for path in self._refused)

    def allows(self, real: bytes) -> bool:
        """Whether a real path (no links left in it) may be read."""
        return not self.is_refused(real) and any(_within(real, root) for root in self._roots)


def _within(path: bytes, folder: bytes) -> bool:
    return path == folder or path.startswith(folder.rstrip(b"/") + b"/")


class OutsideFence(Exception):
    """What was opened lies outside: a symbolic link led out, or someone exchanged a folder just now."""


def open_inside(path: bytes, fence: Fence) -> tuple[int, os.stat_result]:
    """Open a regular file for reading, then ask the kernel where it really is: no race can move it after
    that.

    Returns a descriptor (the caller closes it) and its state. Raises OutsideFence, or OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        state = os.fstat(descriptor)
        try:
            real = os.readlink(b"/proc/self/fd/%d" % descriptor)
        except OSError:
            real = os.path.realpath(path)  # no /proc here: right unless someone races us
        if not fence.allows(real):
            raise OutsideFence
        if not stat.S_ISREG(state.st_mode):
            raise OutsideFence
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, state
