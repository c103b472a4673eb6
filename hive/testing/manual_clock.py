"""A clock that stands still until it is told to move."""

from datetime import UTC, datetime, timedelta

_START = datetime(2026, 1, 1, tzinfo=UTC)


class ManualClock:
    """A ``hive.clock.Clock`` for tests: ``advance`` is the only way time passes."""

    def __init__(self, start: datetime = _START) -> None:
        self._start = start
        self._seconds = 0.0

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._seconds

    def now(self) -> datetime:
        """The start moved on by all that was advanced."""
        return self._start + timedelta(seconds=self._seconds)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass."""
        if seconds < 0:
            raise ValueError("time does not run backwards")
        self._seconds += seconds
