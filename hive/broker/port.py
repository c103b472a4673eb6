"""The broker contract: what a queue's carrier promises. Ledger, stream and memory keep it alike.

A message's life, whatever the carrier::

    publish ─▶ waiting ──claim──▶ a Delivery (owner, fence, lease) ──settle──▶ gone, done, or waiting again
                  ▲                      │ renew (every third of the lease)
                  └──── sweep: due, lease ended, owner dead ◀──┘

Who shares a queue is served fairly: lanes six to three to one; tenants by weight, by what they have in flight
and what it costs; one message at a time of a ``resource``.

The suites in ``hive.testing`` (``broker_contract``, ``fairness_contract``, ``operations_contract``,
``transaction_contract``, ``broker_machine``) are this file in executable form.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Literal, NamedTuple, Protocol

from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId
from hive.outcomes import ErrorRecord, Outcome
from hive.states import JobState
from hive.store.connection import Connection

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]
Arguments = Mapping[str, JsonValue]


class Lane(IntEnum):
    """A line inside a queue. Stored as its number; served so that none starves."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class BrokerKind(StrEnum):
    """Which carrier a queue uses."""

    LEDGER = "ledger"
    STREAM = "stream"
    MEMORY = "memory"


class Written(dict[str, JsonValue]):
    """Arguments that were written as JSON to check them; ``text`` is what carriers then take.

    So they are not to be changed any more: what is changed afterwards is not sent.
    """

    __slots__ = ("text",)

    text: str


WhileRunning = Literal["rerun", "drop"]


class Message(NamedTuple):
    """One request to run a task: ids only, never content. Given by name, as all values here.

    A tuple, as ``Delivery`` is, and what messages often have in common comes last: ``message[2:]``.

    ``tenant`` is None exactly for tasks of scope ``system``. ``args`` must survive a round trip through JSON
    and stay below 64 KiB. ``key``: while a message of the same tenant, task and key waits (scheduled, pending
    or retrying), a second publish returns the first one's id. A publish while it runs marks it to run once
    more (``while_running="rerun"``) or is dropped (``"drop"``, for ticks).
    """

    id: MessageId
    args: Arguments
    queue: QueueName
    task: TaskName
    tenant: TenantId | None
    lane: Lane = Lane.NORMAL
    key: str | None = None
    while_running: WhileRunning = "rerun"
    resource: str | None = None
    cost: int = 1
    delay_seconds: float = 0.0
    expires_seconds: float | None = None
    max_attempts: int = 4
    parent: MessageId | None = None
    trace: str | None = None


class Published(NamedTuple):
    """What became of one published message: ``id`` is the first one's when ``duplicate``.

    ``duplicate`` is also true when it only marked the running one to run again, or was dropped beside it.
    """

    id: MessageId
    duplicate: bool = False


class Delivery(NamedTuple):
    """One claim of one message. Given by name, as all values here.

    A tuple, since one is made for each message: a frozen dataclass of this size takes four times as long.

    ``fence`` rises with each claim of the message; a settle with an older one changes nothing.
    ``attempt`` counts from 1. ``receipt`` is the carrier's own handle (a stream entry id, say).
    ``redelivered``: an earlier claim ended without an outcome, since its process died or its lease ended;
    a pool then notes the start (``mark_started``) before it enters the handler: crash loops get charged.
    """

    id: MessageId
    queue: QueueName
    task: TaskName
    tenant: TenantId | None
    args: Arguments
    lane: Lane
    owner: ProcessId
    fence: int
    attempt: int
    max_attempts: int
    key: str | None = None
    resource: str | None = None
    cost: int = 1
    parent: MessageId | None = None
    trace: str | None = None
    receipt: str = ""
    enqueued_at: datetime | None = None
    redelivered: bool = False


Taker = Callable[[Delivery, float], bool]
"""Takes a delivery whose lease began after the given moment (boot time), or says that it does not."""


class Settlement(NamedTuple):
    """What a delivery came to, to be written."""

    delivery: Delivery
    outcome: Outcome
    run_seconds: float = 0.0


class Verdict(StrEnum):
    """What became of a settlement.

    ``STALE``: the fence or owner no longer matched, nothing was changed. ``RERUN``: accepted, and put back in
    line since a publish with its key came while it ran. ``POISONED``: a crash that used up its budget, so the
    message failed instead of being retried.
    """

    ACCEPTED = "accepted"
    RERUN = "rerun"
    POISONED = "poisoned"
    STALE = "stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one sweep moved: counts of messages."""

    due: int = 0  # delayed or retrying ones whose time came
    expired: int = 0  # deliveries whose lease ended
    orphaned: int = 0  # deliveries whose owner is known to be dead
    failed: int = 0  # of those, given up since a crash budget was used up


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """How much stands in a queue. Counts above 10,000 are reported as 10,001 (shown as "10,000+")."""

    queue: QueueName
    waiting: int  # pending, claimable now
    delayed: int  # scheduled or retrying
    running: int
    oldest_seconds: float | None  # age of the oldest claimable message


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantBacklog:
    """What one tenant has in a queue."""

    tenant: TenantId | None
    waiting: int
    running: int
    oldest_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that was given up, with its cause. ``args`` is None when it could not be read."""

    id: MessageId
    queue: QueueName
    task: str
    tenant: TenantId | None
    args: Arguments | None
    error: ErrorRecord
    attempts: int
    died_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """A message as an operator sees it."""

    id: MessageId
    queue: QueueName
    task: str
    tenant: TenantId | None
    state: JobState
    lane: Lane
    attempt: int
    max_attempts: int
    stage: str | None = None
    done: int | None = None
    total: int | None = None
    error: ErrorRecord | None = None
    owner: ProcessId | None = None
    enqueued_at: datetime | None = None
    run_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    args: Arguments = field(default_factory=dict[str, JsonValue])


class Broker(Protocol):
    """A carrier of queues.

    Every method has its own deadline and raises ``StoreDown`` when the store does not answer in time; then
    nothing is known about the call's effect, and each call is safe to repeat. Cancelling a call leaves either
    its whole effect or none; a claim whose answer was lost comes back when its lease ends.
    """

    kind: BrokerKind
    lease_seconds: float

    async def run(self) -> None:
        """The carrier's background service (wake-ups, relays), until cancelled; rides out outages."""
        ...

    async def publish(
        self, messages: Sequence[Message], *, connection: Connection | None = None, notify: bool = True
    ) -> list[Published]:
        """Accept ``messages``, in bulk. The answers stand in the order of the messages.

        ``notify=False`` wakes nobody: for hot publishers whose queue is polled anyway. Raises ``QueueFull``,
        and accepts none of them, when a queue's ``max_depth`` would be passed by what waits, due or not.

        ``connection``: the caller's own open transaction. The ledger writes its rows in it, so that they
        exist exactly if it commits; a stream writes to the outbox in it and is relayed after the commit.
        """
        ...

    async def claim(self, queue: QueueName, owner: ProcessId, limit: int) -> list[Delivery]:
        """Take up to ``limit`` claimable messages for ``owner``; returns at once, perhaps with none."""
        ...

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return when ``queue`` may have something to claim or the time is over. May wake for nothing."""
        ...

    async def renew(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Extend the leases of all ``deliveries`` in one round trip; returns those that are *lost*.

        A lease that ended but that nobody claimed since is renewed as well.
        """
        ...

    async def mark_started(self, deliveries: Sequence[Delivery]) -> None:
        """Note that the handlers of ``deliveries`` were entered: from here on, hive's death is charged."""
        ...

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Write the outcomes, each only if its fence still holds. Answers in the order given."""
        ...

    async def progress(self, delivery: Delivery, *, stage: str, done: int | None, total: int | None) -> bool:
        """Record how far a running message is, and reset its crash budgets. False if the fence is stale."""
        ...

    async def cancel_requested(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those of ``deliveries`` whose cancellation was asked for."""
        ...

    async def cancel(self, ids: Sequence[MessageId], *, tenant: TenantId | None = None) -> int:
        """Cancel waiting messages at once and flag running ones; returns how many were touched."""
        ...

    async def sweep(self, queues: Sequence[QueueName], *, expire_leases: bool = True) -> Swept:
        """One round of upkeep: promote what is due, bring back what was abandoned. Any process may do it.

        ``expire_leases=False`` spares what runs: after an outage its owners get their turn to renew first.
        """
        ...

    async def owner_died(self, owner: ProcessId) -> int:
        """Bring back every delivery of a process known to be dead, without waiting for its leases."""
        ...

    async def depth(self, queue: QueueName) -> Depth:
        """Counts of one queue."""
        ...

    async def announce(self, owner: ProcessId, slots: Mapping[QueueName, int]) -> None:
        """Say how many handlers ``owner`` runs at once for each queue: fair shares are cut from the sum.

        Repeated every few seconds; what was not repeated for a lease length counts no more.
        """
        ...

    def receive(self, queue: QueueName, owner: ProcessId, taker: Taker | None) -> None:
        """From now on hand what comes for ``owner`` after a claim that found nothing to ``taker``, at once.

        A carrier may do that, or wake ``owner`` to claim instead. ``taker`` is called on the loop and neither
        waits nor raises; what it does not take goes to others. None: nobody takes anything any more.
        """
        ...

    async def withdraw(self, queue: QueueName, owner: ProcessId) -> None:
        """Say that ``owner`` is not going to ask for more: what a claim that found nothing may have promised.

        What was already set aside for it goes to others. Its next claim counts as any other.
        """
        ...

    async def pause(self, queue: QueueName) -> None:
        """Hand out nothing more of ``queue``, in every process; what runs goes on. Publishing goes on too."""
        ...

    async def resume(self, queue: QueueName) -> None:
        """Hand out messages of ``queue`` again."""
        ...

    async def paused(self) -> frozenset[QueueName]:
        """The queues that are paused."""
        ...

    async def cancel_where(
        self,
        *,
        queue: QueueName | None = None,
        tenant: TenantId | None = None,
        task: TaskName | None = None,
    ) -> int:
        """Cancel everything that fits all the given filters, as ``cancel`` does; returns how many.

        Raises ``InvalidInput`` without any filter. Done in bounded batches: a failure half-way leaves some
        cancelled and the rest untouched, and the call can be repeated.
        """
        ...

    async def backlog(
        self, queue: QueueName, *, after: TenantId | None = None, limit: int = 100
    ) -> list[TenantBacklog]:
        """What each tenant has in ``queue``, a page at a time in the order of their ids; system work first.

        The next page is the one ``after`` the last row's ``tenant or ""``.
        """
        ...

    async def position(self, id: MessageId) -> int | None:
        """How many claimable messages stand before this one in its tenant's line of its lane, at most 10,001.

        None when it does not wait.
        """
        ...

    async def dead_letters(
        self, *, queue: QueueName | None = None, tenant: TenantId | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """The newest dead letters first."""
        ...

    async def replay(self, ids: Sequence[MessageId]) -> int:
        """Put dead letters back in line with fresh budgets; returns how many.

        Raises ``Conflict`` naming the id when another waiting or running message holds the same key.
        """
        ...

    async def purge(self, ids: Sequence[MessageId]) -> int:
        """Delete dead letters for good; returns how many."""
        ...


class TransactionalBroker(Broker, Protocol):
    """A broker whose deliveries can be settled inside the handler's own transaction: the ledger."""

    def transaction(self, delivery: Delivery) -> AbstractAsyncContextManager[Connection]:
        """Open a transaction in the delivery's tenant, lock its row and check the fence.

        Leaving it without an error settles the delivery as completed in the same commit. Raises ``LeaseLost``
        before the body runs if the fence is stale.
        """
        ...

    async def find(self, id: MessageId) -> JobView | None:
        """One job, or None."""
        ...

    async def jobs(
        self,
        *,
        queue: QueueName | None = None,
        tenant: TenantId | None = None,
        state: JobState | None = None,
        task: str | None = None,
        limit: int = 100,
    ) -> list[JobView]:
        """Jobs, newest first."""
        ...
