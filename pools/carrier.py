"""A carrier: one broker as one pool deals with it, with the loops that keep its runs true."""

from collections.abc import Callable, Sequence

import anyio

from hive.broker.port import Broker
from hive.clock import Clock
from hive.events import Events
from hive.ids import ProcessId, QueueName
from hive.settings import Leases
from pools.announcements import Announcements
from pools.cancellations import Cancellations
from pools.doubt import Doubt
from pools.hands import Hands
from pools.renewal import Renewal
from pools.settler import Settler
from pools.starts import Starts


class Carrier:
    """The runs of one broker, and their renewal, doubt, cancellation, start notes, settling and
    announcements.

    A pool has one for each broker its queues use, so that one store's outage does not hold up the other's
    jobs.
    """

    def __init__(
        self,
        broker: Broker,
        *,
        pool: str,
        owner: ProcessId,
        queues: Sequence[QueueName],
        slots: int,
        leases: Leases,
        beat: Callable[[], None],
        on_settled: Callable[[str], None],
        events: Events,
        clock: Clock,
    ) -> None:
        self.broker = broker
        self.hands = Hands(broker, pool, beat)
        self.settler = Settler(self.hands, pool=pool, events=events, on_settled=on_settled)
        self.renewal = Renewal(self.hands, renew_seconds=leases.renew_seconds, clock=clock)
        self.doubt = Doubt(self.hands, margin_seconds=leases.doubt_margin_seconds, clock=clock)
        self.cancellations = Cancellations(self.hands)
        self.starts = Starts(self.hands, clock)
        self.announcements = Announcements(
            self.hands, owner=owner, queues=queues, slots=slots, period_seconds=leases.renew_seconds
        )

    async def run(self) -> None:
        """Keep the loops going until cancelled. Nothing held is forgotten by that; a later run goes on."""
        async with anyio.create_task_group() as group:
            group.start_soon(self.settler.run)
            group.start_soon(self.renewal.run)
            group.start_soon(self.doubt.run)
            group.start_soon(self.cancellations.run)
            group.start_soon(self.starts.run)
            group.start_soon(self.announcements.run)
