"""A clock that stands still until a test moves it."""

from datetime import UTC, datetime, timedelta


class ManualClock:
    """Time moves only by ``advance``."""

    def __init__(self) -> None:
        self._seconds = 1_000.0

    def monotonic(self) -> float:
        return self._seconds

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self._seconds)

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
