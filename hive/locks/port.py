"""The leader lease: a time-limited right to be the one process that runs beat, with a number for each holder.

::

    candidate ──try_acquire()──▶ holder of term n ──renew()──▶ … ──release()──▶ candidate
                                     │  renew() is False: another holds it, or the store forgot it
                                     └──────────▶ candidate, never again with term n

The lease says who *should* lead. The term decides whose *writes* count: it rises with every new holder,
stands in Postgres, and ``assert_term`` refuses a lower one inside the writer's own transaction. So a store
that forgets a lease (a flushed Redis) can make two holders for a while, but never two whose writes are
accepted.
"""

from typing import Final, Protocol

from hive.errors import HiveError
from hive.store.connection import Connection

CALL_SECONDS: Final = 5.0
"""Deadline of one call to the lease's store."""


class StaleTerm(HiveError):
    """Another process leads since: a leader's write was refused and nothing of it was kept."""

    code = "stale_term"

    def __init__(self, term: int, present: int) -> None:
        super().__init__(f"leader term {term} is over: the present one is {present}")
        self.term = term
        self.present = present


class LeaderLease(Protocol):
    """A lease on a connection of its own, so that no exhausted pool can delay a renewal.

    Every method has a deadline and raises ``StoreDown`` when the store does not answer; then nothing is known
    about the call's effect, and each call is safe to repeat.
    """

    ttl_seconds: float

    async def try_acquire(self) -> int | None:
        """Take the lease if it is free, or held by an earlier boot of this instance; returns the new term.

        None: another process holds it, or took it at the same moment. Never touches another's lease.
        """
        ...

    async def renew(self) -> bool:
        """Extend the lease by its full length. False: it is no longer ours, and its term is over."""
        ...

    async def release(self) -> None:
        """Give the lease up, so that another can take it at once. Does nothing if it is not ours."""
        ...

    async def close(self) -> None:
        """Close the lease's own connection. The lease itself runs out by its time, unless released."""
        ...


async def assert_term(connection: Connection, term: int) -> None:
    """Raise ``StaleTerm`` unless ``term`` is the present one. Call it inside the leader's own transaction.

    The row stays locked against a new leader until that transaction ends: a write that was let through is
    committed before the next term begins.
    """
    present = await connection.fetchval("select term from hive.leader_term for share", timeout=CALL_SECONDS)
    if present != term:
        raise StaleTerm(term, int(present))
