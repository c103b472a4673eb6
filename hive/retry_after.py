"""What a server asks for in its Retry-After header."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from hive.clock import SystemClock

MOST_SECONDS: Final = 86_400.0


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from either of the header's forms (RFC 9110, 10.2.3), at most a day; None without one.

    A date is measured against the server's own clock, where the answer has a Date.
    """
    value = headers.get("Retry-After")
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        moment = _moment(value)
        if moment is None:
            return None
        seconds = (moment - (_moment(headers.get("Date", "")) or SystemClock().now())).total_seconds()
    return min(MOST_SECONDS, max(0.0, seconds)) if math.isfinite(seconds) else None


def _moment(value: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(value)
    except (ValueError, OverflowError, TypeError, LookupError):  # which of them depends on the version
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
