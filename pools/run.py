"""A run: one delivery in this pool's hands, from its claim until its outcome is written."""

import asyncio
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from hive.broker.port import Delivery
from hive.context import Context
from hive.ids import MessageId, QueueName, TenantId
from hive.tasks import OnLeaseDoubt


class StopReason(Enum):
    """Why a run was told to stop. Each leads to an outcome of its own."""

    OPERATOR = "cancelled"  # somebody asked for it: Cancelled
    LOST = "lease_lost"  # somebody else has the job: nothing is written
    SHUTDOWN = "shutdown"  # hive makes room: Released
    DOUBT = "lease_doubt"  # the store is away and the lease nearly over: Released, if that can be written
    SOFT_DEADLINE = "soft_deadline"
    HARD_DEADLINE = "hard_deadline"


class Run:
    """Mutable, and owned by the loop.

    ``leased_at`` is when the call began that gave or renewed the lease, so the true lease ends no earlier
    than ``leased_at + lease_seconds``. ``entered_at`` is None until the handler was entered, ``ended_at``
    until it came back. ``interruptible`` is false while the handler sits in a thread: nothing interrupts it.
    """

    __slots__ = (
        "context",
        "delivery",
        "ended_at",
        "entered_at",
        "has_slot",
        "interruptible",
        "leased_at",
        "noted",
        "on_lease_doubt",
        "reason",
        "task",
        "thread",
        "written_off",
    )

    def __init__(self, delivery: Delivery, leased_at: float) -> None:
        self.delivery = delivery
        self.leased_at = leased_at
        self.entered_at: float | None = None
        self.ended_at: float | None = None
        self.reason: StopReason | None = None
        self.context: Context | None = None
        self.task: asyncio.Task[object] | None = None
        self.thread: asyncio.Future[None] | None = None
        self.interruptible = True
        self.has_slot = False
        self.noted = False  # mark_started was called for it
        self.on_lease_doubt: OnLeaseDoubt = "cancel"
        self.written_off = False

    @property
    def key(self) -> tuple[MessageId, int]:
        """What tells this claim from an earlier one of the same message."""
        return (self.delivery.id, self.delivery.fence)

    @property
    def active(self) -> bool:
        """Whether its handler was entered and has not come back."""
        return self.entered_at is not None and self.ended_at is None

    @property
    def run_seconds(self) -> float:
        if self.entered_at is None or self.ended_at is None:
            return 0.0
        return self.ended_at - self.entered_at

    def stop(self, reason: StopReason) -> None:
        """Tell the handler to end; its outcome follows from the first reason given, a lost lease above all.

        A run that has not begun ends when its turn comes, without being entered. Cancellation is asyncio's
        own, delivered once: anyio's scopes cancel again at each await, which would cut off the clean-up
        (a rollback, the end of a child) of code that knows nothing of them.
        """
        if self.ended_at is not None:
            return
        if self.reason is None or reason is StopReason.LOST:
            self.reason = reason
        if self.context is not None:
            self.context.request_stop()
        if self.interruptible and self.task is not None:
            self.task.cancel(reason.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningJob:
    """A run as an operator sees it. ``state``: waiting (prefetched), running, stopping, stuck or settling."""

    job: MessageId
    task: str
    queue: QueueName
    tenant: TenantId | None
    attempt: int
    state: str
    since: datetime | None  # when its handler was entered
    seconds: float


def state_of(run: Run) -> str:
    """The word for where ``run`` stands."""
    if run.ended_at is not None:
        return "settling"
    if run.entered_at is None:
        return "waiting"
    if run.written_off:
        return "stuck"
    return "running" if run.reason is None else "stopping"
