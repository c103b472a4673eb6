"""Retry policies and back-off are values with stated bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hive.backoff import NEVER, Backoff, Retry
from hive.errors import ConfigurationError, StoreDown, Transient


def test_default_delays() -> None:
    retry = Retry(jitter=0)
    assert [retry.delay(attempt) for attempt in (1, 2, 3, 4)] == [10, 30, 120, None]
    assert retry.max_attempts == 4


def test_exponential() -> None:
    retry = Retry(first_seconds=16, factor=2, attempts=3, jitter=0)
    assert retry.delays_seconds == (16, 32, 64)


def test_only_listed_errors_and_transient_ones_are_retried() -> None:
    retry = Retry(on=(KeyError,))
    assert retry.retries(KeyError("x"))
    assert retry.retries(Transient("busy"))
    assert retry.retries(StoreDown("postgres", "claiming"))
    assert not retry.retries(ValueError("x"))
    assert NEVER.delay(1) is None


@given(spread=st.floats(0, 1), attempt=st.integers(1, 3))
def test_jitter_stays_within_its_share(spread: float, attempt: int) -> None:
    retry = Retry(jitter=0.2)
    delay = retry.delay(attempt, lambda: spread)
    assert delay is not None
    plain = retry.delays_seconds[attempt - 1]
    assert plain * 0.8 - 1e-9 <= delay <= plain * 1.2 + 1e-9


@given(failures=st.integers(1, 10_000), spread=st.floats(0, 1))
def test_backoff_is_bounded(failures: int, spread: float) -> None:
    backoff = Backoff(first_seconds=0.2, max_seconds=30)
    assert 0 < backoff.delay(failures, lambda: spread) <= 36


@pytest.mark.parametrize(
    "arguments",
    [{"delays_seconds": (1,), "first_seconds": 1}, {"delays_seconds": (-1,)}, {"jitter": 1.0}],
)
def test_impossible_policies_are_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        Retry(**arguments)  # type: ignore[arg-type]
