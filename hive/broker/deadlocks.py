"""Deadlocks of the ledger: met by trying again.

Rows are locked in a fixed order wherever hive chooses it. A caller's own transaction may lock them in
another, when it marks running jobs to run again. Postgres then ends one of the two; if it is ours, its
statement was its whole transaction, and nothing of it was done.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

import asyncpg

from hive.errors import StoreDown
from hive.logger import get_logger

log = get_logger(__name__)

T = TypeVar("T")


async def again_after_deadlock(call: Callable[[], Awaitable[T]]) -> T:
    """``call``'s answer; called up to three times. Raises StoreDown when each ended in a deadlock."""
    for _ in range(3):
        try:
            return await call()
        except asyncpg.DeadlockDetectedError:
            log.warning("ledger.deadlock")
    raise StoreDown("postgres", "writing jobs", "deadlocked three times in a row")
