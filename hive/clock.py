"""Time, injected. ``monotonic`` measures, ``now`` is for people.

What several processes compare (leases, due times) never comes from here: it uses the store's own clock.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where the time comes from."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back and runs on through a suspend."""
        ...

    def now(self) -> datetime:
        """The wall clock, in UTC, for people."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.clock_gettime(time.CLOCK_REALTIME), UTC)
