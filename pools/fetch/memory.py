"""How much memory a process and its descendants hold, from /proc: some 10 µs for a child without any."""

import os
from contextlib import suppress

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MOST_PROCESSES = 256


def resident_bytes(pid: int) -> int:
    """Resident memory of ``pid`` and all its descendants; 0 when it is gone.

    Pages shared with the zygote count too: that is what the process would need by itself.
    """
    total, waiting, seen = 0, [pid], 0
    while waiting and seen < _MOST_PROCESSES:
        process = waiting.pop()
        seen += 1
        # Each may end while it is looked at; ENOENT and ESRCH say so.
        with suppress(OSError, ValueError, IndexError):
            total += int(_read(f"/proc/{process}/statm").split()[1]) * _PAGE
        with suppress(OSError):
            for thread in os.listdir(f"/proc/{process}/task"):
                with suppress(OSError, ValueError):
                    listing = _read(f"/proc/{process}/task/{thread}/children")
                    waiting += [int(child) for child in listing.split()]
    return total


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)
