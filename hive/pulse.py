"""A pulse: the time a service last finished a real round of work. Health is judged by it, not by a timer."""

from hive.clock import Clock


class Pulse:
    """Beaten by the service itself at the end of each round; read by the watchdog and the probes.

    ``period_seconds``: how long one round may take while all is well. The pulse is stale after three.
    """

    __slots__ = ("_clock", "_last", "period_seconds")

    def __init__(self, clock: Clock, period_seconds: float) -> None:
        self._clock = clock
        self.period_seconds = period_seconds
        self._last = clock.monotonic()

    def beat(self) -> None:
        """A round was finished just now."""
        self._last = self._clock.monotonic()

    @property
    def age_seconds(self) -> float:
        """Seconds since the last finished round."""
        return self._clock.monotonic() - self._last

    @property
    def fresh(self) -> bool:
        """Whether the last round ended within three periods."""
        return self.age_seconds <= 3 * self.period_seconds
