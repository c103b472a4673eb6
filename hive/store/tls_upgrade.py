"""Keeps a connect that was given up half-way out of the log.

Over TCP, asyncpg first asks the server whether it speaks TLS (``sslmode=prefer`` is its default), and its
protocol has a future for the answer. A connect that is cancelled, or out of time, once it has that protocol
and before it waits for the future leaves it to nobody; as the socket closes it fails, and asyncio writes an
error: "Future exception was never retrieved … unexpected connection_lost() call". A listener that is made
anew for more queues, or a hive that is stopped while it starts, meets that turn of the loop now and then.

To shield each connect from cancellation was rejected: a stop would wait ten seconds for a server that does
not answer; and asyncpg's own deadlines and cancel requests would not be covered.
"""

from typing import Any

from asyncpg import connect_utils

_NAME = "TLSUpgradeProto"


def retrieve_abandoned() -> None:
    """Have the failure of such a future count as retrieved; who waits for one is told all the same.

    Safe to repeat. Changes nothing where asyncpg has no protocol of that name.
    """
    protocol: Any = getattr(connect_utils, _NAME, None)
    if protocol is None or hasattr(protocol, "retrieves"):
        return

    class Retrieving(protocol):
        retrieves = True

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self.on_data.done() and not self.on_data.cancelled():
                self.on_data.exception()

    setattr(connect_utils, _NAME, Retrieving)
