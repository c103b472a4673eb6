"""How long to wait before trying again: the retry policy as a value."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from hive.errors import ConfigurationError, Transient


@dataclass(frozen=True, slots=True, init=False)
class Retry:
    """Which errors a task retries, and after how many seconds.

    Either a list of delays::

        Retry(on=(TimeoutError,), delays_seconds=(10, 30, 120), jitter=0.2)

    or exponential growth::

        Retry(on=(TimeoutError,), first_seconds=16, factor=2, attempts=3)

    ``on`` always includes ``hive.errors.Transient``. Every other error fails the job at once.
    ``jitter`` spreads each delay by that share, up and down.
    """

    on: tuple[type[BaseException], ...]
    delays_seconds: tuple[float, ...]
    jitter: float

    def __init__(
        self,
        *,
        on: tuple[type[BaseException], ...] = (),
        delays_seconds: tuple[float, ...] | None = None,
        first_seconds: float | None = None,
        factor: float = 2.0,
        attempts: int = 3,
        jitter: float = 0.2,
    ) -> None:
        if delays_seconds is not None and first_seconds is not None:
            raise ConfigurationError("Retry takes delays_seconds or first_seconds, not both")
        if first_seconds is not None:
            delays_seconds = tuple(first_seconds * factor**step for step in range(attempts))
        if delays_seconds is None:
            delays_seconds = (10.0, 30.0, 120.0)
        if any(delay < 0 for delay in delays_seconds):
            raise ConfigurationError("Retry: a delay is negative", remedy="give seconds of 0 or more")
        if not 0 <= jitter < 1:
            raise ConfigurationError("Retry: jitter must lie between 0 and 1")
        object.__setattr__(self, "on", (*on, Transient))
        object.__setattr__(self, "delays_seconds", tuple(float(delay) for delay in delays_seconds))
        object.__setattr__(self, "jitter", jitter)

    @property
    def max_attempts(self) -> int:
        """How often a job runs at the most: once, and once more for each delay."""
        return len(self.delays_seconds) + 1

    def retries(self, error: BaseException) -> bool:
        """Whether this policy retries ``error``."""
        return isinstance(error, self.on)

    def delay(self, attempt: int, spread: Callable[[], float] = random.random) -> float | None:
        """Seconds to wait after the ``attempt``-th run (from 1) failed; None when the retries are used up."""
        if attempt > len(self.delays_seconds):
            return None
        return jittered(self.delays_seconds[attempt - 1], self.jitter, spread)


NEVER = Retry(delays_seconds=())


def jittered(seconds: float, share: float, spread: Callable[[], float] = random.random) -> float:
    """``seconds`` moved by up to ±``share`` of itself; ``spread`` gives a number from 0 to 1."""
    return seconds * (1 + share * (2 * spread() - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Exponential growth for services and reconnects: ``first × factor^n``, at most ``max``, for ever."""

    first_seconds: float = 0.2
    factor: float = 2.0
    max_seconds: float = 30.0
    jitter: float = 0.2

    def delay(self, failures: int, spread: Callable[[], float] = random.random) -> float:
        """Seconds to wait after ``failures`` failures in a row (from 1)."""
        exponent = min(failures - 1, 63)
        return jittered(
            min(self.first_seconds * self.factor**exponent, self.max_seconds), self.jitter, spread
        )
