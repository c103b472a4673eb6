"""The fair claim: which rows of a queue a process takes next.

The work is one statement (``claim`` in ``sql/delivery.sql``). What it is told stands here: whose turn it is
among the lanes, and after which tenant the walk over the tenants goes on. Both are a process' own: two that
walk the same ring from different places serve it all the sooner.
"""

from collections.abc import Sequence
from typing import Final

import asyncpg

from hive.broker import ledger_rows as rows
from hive.broker.lanes import LaneTurns
from hive.broker.port import Delivery, Lane
from hive.broker.queries import load
from hive.broker.wire import Unparsable
from hive.errors import StoreDown
from hive.ids import MessageId, ProcessId, QueueName
from hive.logger import get_logger
from hive.store.connection import Connection, Row

log = get_logger(__name__)

_CLAIM: Final = load("delivery")["claim"]
_REJECT: Final = load("settle")["reject"]

TENANTS: Final = 100  # looked at in one pass
PASSES: Final = 4
"""Of one claim. A second is needed only where several tenants or one resource left slots empty: the first one
took what levels the loads, and somebody had less to take."""


ROUNDS: Final = 20  # of one claim, when much of what it finds cannot be read


class Turns:
    """Who is next in one queue."""

    def __init__(self) -> None:
        self.lanes = LaneTurns()
        self.cursors: list[str] = ["" for _ in Lane]


class Claims:
    """Claims for one process; ``lease_seconds`` by Postgres' clock."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._turns: dict[QueueName, Turns] = {}

    async def take(
        self, connection: Connection, queue: QueueName, owner: ProcessId, limit: int
    ) -> list[Delivery]:
        """Take up to ``limit`` rows, the higher lanes first."""
        turns = self._turns.setdefault(queue, Turns())
        taken: list[Delivery] = []
        passes = rounds = 0
        past_level = False
        while passes < PASSES and len(taken) < limit and rounds < ROUNDS:
            passes += 1
            rounds += 1
            try:
                found = await self._pass(
                    connection, queue, owner, limit - len(taken), turns, past_level=past_level
                )
            except asyncpg.UniqueViolationError:
                continue  # another claim took the same resource at the same moment: its row is seen now
            except StoreDown:
                if taken:
                    break  # the next claim will say so; these are ours
                raise
            got = [row for row in found if row["id"] is not None]
            turns.lanes.served(len(got))
            self._move(turns, found[0], got)
            read = await self._readable(connection, got, queue, owner)
            taken += read
            if len(read) < len(got):
                passes -= 1  # they are out of the way now
            elif not found[0]["more"]:
                break
            past_level = not got
        if rounds > 1:
            taken.sort(key=_lane)
        return taken

    async def _readable(
        self, connection: Connection, found: Sequence[Row], queue: QueueName, owner: ProcessId
    ) -> list[Delivery]:
        """The deliveries in ``found``. What hive could not have written is given up, with the reason."""
        deliveries: list[Delivery] = []
        unreadable: list[tuple[MessageId, int, str]] = []
        for row in found:
            try:
                deliveries.append(rows.delivery_of(row, queue, owner))
            except Unparsable as error:
                unreadable.append((row["id"], row["fence"], rows.printable(error.message, 500)))
        if unreadable:
            ids, fences, reasons = (list(column) for column in zip(*unreadable, strict=True))
            await connection.execute(_REJECT, ids, fences, owner, reasons)
            log.warning("ledger.unparsable", queue=queue, count=len(ids), job=str(ids[0]), reason=reasons[0])
        return deliveries

    async def _pass(
        self,
        connection: Connection,
        queue: QueueName,
        owner: ProcessId,
        limit: int,
        turns: Turns,
        *,
        past_level: bool,
    ) -> Sequence[Row]:
        return await connection.fetch(
            _CLAIM,
            queue,
            owner,
            limit,
            self._lease_seconds,
            *turns.lanes.parts(limit),
            *turns.cursors,
            TENANTS,
            past_level,
        )

    def _move(self, turns: Turns, first: Row, got: list[Row]) -> None:
        """Go on after the last tenant that was served; or after the last one seen, if there was no other."""
        for lane, last in enumerate(first["ends"] or ()):
            if last is not None:
                turns.cursors[lane] = last
        furthest: dict[int, int] = {}
        for row in got:
            lane, place = row["lane"], row["place"]
            if place > furthest.get(lane, -1):
                furthest[lane] = place
                turns.cursors[lane] = row["tenant"] or ""


def _lane(delivery: Delivery) -> Lane:
    return delivery.lane
