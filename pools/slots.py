"""Slots: how many handlers of one pool run at once.

A semaphore of our own, since it must be resized while it is in use, handed out in a fair order to whole
batches, and able to lose a slot: anyio's ``CapacityLimiter`` counts borrowers one by one, and an
``asyncio.Semaphore`` cannot shrink.

    free ──grab / acquire──▶ in use ──release──▶ free
                               │  ▲
                      write_off│  │recover      (still in use, but nobody expects it back soon)
                               ▼  │
                            written off
"""

import asyncio
from collections import deque


class Slots:
    """``total`` may change at any time; after a shrink, ``free`` is 0 until enough slots came back.

    Waiters are served in the order they came, and one that asks for many gets no more than its part while
    others wait. That is what keeps a busy queue from keeping its neighbours out.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.in_use = 0
        self.written_off = 0
        self._waiters: deque[tuple[asyncio.Future[int], int]] = deque()

    @property
    def free(self) -> int:
        return max(0, self.total - self.in_use)

    def grab(self, most: int) -> int:
        """Take up to ``most`` free slots now; none while somebody waits for one."""
        if self._waiters or most <= 0:
            return 0
        taken = min(most, self.free)
        self.in_use += taken
        return taken

    async def acquire(self, most: int) -> int:
        """Wait for a slot and take up to ``most`` (at least 1); returns how many.

        Cancelling the wait takes none.
        """
        taken = self.grab(most)
        if taken:
            return taken
        granted: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiters.append((granted, max(1, most)))
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(granted.result())  # granted in the same turn in which we were cancelled
            else:
                granted.cancel()
            raise

    def release(self, count: int = 1) -> None:
        """Give slots back. Returning more than were taken is a bug, and raises."""
        if count > self.in_use:
            raise RuntimeError(f"{count} slots released while {self.in_use} are in use")
        self.in_use -= count
        if self._waiters:
            self._grant()

    def resize(self, total: int) -> None:
        """Have ``total`` slots from now on. What runs goes on; surplus slots vanish as they come back."""
        if total < 0:
            raise ValueError("a pool has 0 slots or more")
        self.total = total
        self._grant()

    def write_off(self) -> None:
        """Count one slot in use as lost: its handler can neither be ended nor be waited for."""
        self.written_off += 1

    def recover(self) -> None:
        """A lost slot's handler ended after all. The slot itself comes back by ``release``."""
        self.written_off -= 1

    def _grant(self) -> None:
        while self._waiters and self.free:
            granted, most = self._waiters.popleft()
            if granted.done():
                continue  # cancelled while it waited
            taken = min(most, max(1, self.free // (len(self._waiters) + 1)))
            self.in_use += taken
            granted.set_result(taken)
