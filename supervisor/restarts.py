"""When a failed service is started again: back-off and restart budget as one small calculation."""

from collections import deque

from hive.backoff import Backoff
from hive.settings import Services

OUTAGE_SECONDS = 1.0
"""Longest wait after a failure that was a store's outage: work resumes within 2 s of the store's return."""


class RestartBudget:
    """The failures of one service. All times are seconds on one monotonic clock.

    An outage of a store is not the service's fault: it is waited out with short, flat pauses and not charged,
    or an hour without Redis would leave every service FATAL when Redis comes back.
    """

    def __init__(self, settings: Services) -> None:
        self._backoff = Backoff(
            first_seconds=settings.backoff_first_seconds, max_seconds=settings.backoff_max_seconds
        )
        self._healthy_seconds = settings.healthy_seconds
        self._limit = settings.restart_limit
        self._window_seconds = settings.restart_window_seconds
        self._in_a_row = 0
        self._charged: deque[float] = deque()

    def failed(self, *, at: float, lived_seconds: float, outage: bool = False) -> float | None:
        """Note a failure at ``at`` after ``lived_seconds`` of running; returns the seconds to wait before the
        next start, or None when the budget is used up."""
        if lived_seconds >= self._healthy_seconds:
            self._in_a_row = 0
        self._in_a_row += 1
        delay = self._backoff.delay(self._in_a_row)
        if outage:
            return min(delay, OUTAGE_SECONDS)
        self._charged.append(at)
        while self._charged[0] < at - self._window_seconds:
            self._charged.popleft()
        return None if len(self._charged) > self._limit else delay

    def forgive(self) -> None:
        """Begin anew: a person asked for the restart."""
        self._in_a_row = 0
        self._charged.clear()
