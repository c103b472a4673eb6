"""The ledger: queues as rows of Postgres. Durable, transactional, the truth.

A job is one row of ``hive.job`` for its whole life. A claim locks rows with ``SKIP LOCKED``, so that
claimers never wait for each other; every later write names the fence and the owner and changes nothing if
they no longer match. Statements that serve many deliveries at once skip locked rows as well: a handler inside
``transaction()`` holds its own row, and must not hold up its neighbours' renewals.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeVar

import asyncpg

from hive.broker import ledger_rows as rows
from hive.broker.deadlocks import again_after_deadlock
from hive.broker.ledger_claims import Claims
from hive.broker.ledger_upkeep import LedgerUpkeep
from hive.broker.ledger_wakeups import LedgerWakeups
from hive.broker.port import BrokerKind, Delivery, Message, Published, Settlement, Verdict
from hive.broker.queries import load
from hive.errors import InvalidInput, LeaseLost, QueueFull
from hive.events import Events
from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId
from hive.logger import get_logger
from hive.outcomes import Completed
from hive.settings import Crashes
from hive.store.connection import Connection
from hive.store.postgres import Database

log = get_logger(__name__)

_GIVEN: Final = f"with given as (\n{load('publish')['given']}\n)"
PUBLISH_KEYED: Final = f"{_GIVEN}\n{load('publish')['publish_keyed']}"
PUBLISH_UNKEYED: Final = f"{_GIVEN}\n{load('publish')['publish_unkeyed']}"
# Looking for a row that exists already costs a fifth of an insert, and it hardly ever does.
PUBLISH_NEW: Final = PUBLISH_UNKEYED.replace("on conflict do nothing", "")
_DELIVERY: Final = load("delivery")
_VIEWS: Final = load("views")
_COMPLETE: Final = load("settle")["complete"]
SETTLE: Final = load("settle")["settle"]
# For the few rows that somebody else's transaction holds: a caller's that marked them to run again, say.
SETTLE_WAITING: Final = SETTLE.replace("for update skip locked", "for update")
_VERDICTS: Final = {each.value: each for each in Verdict}
ROWS_PER_STATEMENT: Final = 2_000

T = TypeVar("T")
Key = tuple[TenantId | None, TaskName, str]


class Ledger(LedgerUpkeep):
    """The broker contract over Postgres; see ``hive.broker.port`` for what each method promises.

    ``lease_seconds``: how long a claim holds without a renewal, by Postgres' clock. ``crashes``: how many
    deaths of its child, or of hive, a job may cause. ``max_depth``: how many messages may wait in a queue,
    due or not, before this process refuses to publish more; two that publish at once can pass it by what they
    send. ``run()`` is its background service.
    """

    kind = BrokerKind.LEDGER

    def __init__(
        self,
        database: Database,
        *,
        lease_seconds: float = 60.0,
        crashes: Crashes | None = None,
        max_depth: Mapping[QueueName, int] | None = None,
        events: Events | None = None,
    ) -> None:
        del events
        self._max_depth = dict(max_depth or {})
        self._crashes = crashes or Crashes()
        super().__init__(database, hive_crash_limit=self._crashes.hive_limit)
        self.lease_seconds = lease_seconds
        self._wakeups = LedgerWakeups(database)
        self._claims = Claims(lease_seconds)

    async def run(self) -> None:
        """Listen for wake-ups until cancelled; rides out outages. Without it, ``wait`` polls."""
        await self._wakeups.run()

    @property
    def listening(self) -> bool:
        """Whether notifications are known to arrive; otherwise ``wait`` polls every 250 ms."""
        return self._wakeups.listening

    async def publish(
        self, messages: Sequence[Message], *, connection: Connection | None = None, notify: bool = True
    ) -> list[Published]:
        """Write ``messages`` as rows, in the caller's transaction or in one of its own."""
        if not messages:
            return []
        first: dict[Key, MessageId] = {}
        for each in messages:
            if each.key is not None:
                first.setdefault((each.tenant, each.task, each.key), each.id)
        woken = {each.queue for each in messages if each.delay_seconds <= 0} if notify else set[QueueName]()
        new = messages
        if first:
            new = [
                each
                for each in messages
                if each.key is None or first[(each.tenant, each.task, each.key)] == each.id
            ]
        if connection is not None:
            query = PUBLISH_KEYED if first else PUBLISH_UNKEYED
            holders = await self._insert(connection, query, new, woken)
        elif first:
            holders = await self._insert_alone(PUBLISH_KEYED, new, woken)
        else:
            try:
                holders = await self._insert_alone(PUBLISH_NEW, new, woken)
            except asyncpg.UniqueViolationError:  # the same publish said twice
                holders = await self._insert_alone(PUBLISH_UNKEYED, new, woken)
        if connection is None:
            for queue in woken:
                self._wakeups.wake(queue)
        if not first:
            return [Published(each.id) for each in messages]
        answers: list[Published] = []
        for each in messages:
            if each.key is None:
                answers.append(Published(id=each.id))
            else:
                key = (each.tenant, each.task, each.key)
                holder = holders.get(key, first[key])
                answers.append(Published(id=holder, duplicate=holder != each.id))
        return answers

    async def _insert_alone(
        self, query: str, messages: Sequence[Message], woken: Set[QueueName]
    ) -> dict[Key, MessageId]:
        """``_insert`` in a transaction of its own: one statement is one by itself."""
        alone = len(messages) <= ROWS_PER_STATEMENT
        async with self._database.statements() if alone else self._database.transaction() as connection:
            return await self._insert(connection, query, messages, woken)

    async def _insert(
        self, connection: Connection, query: str, messages: Sequence[Message], woken: Set[QueueName]
    ) -> dict[Key, MessageId]:
        """Write the rows; returns who holds each key. Raises QueueFull before it writes any."""
        if self._max_depth:
            await self._refuse_when_full(connection, messages)
        holders: dict[Key, MessageId] = {}
        try:
            for part in _parts(messages):
                written = await connection.fetch(query, *rows.message_columns(part, sorted(woken)))
                if query is PUBLISH_KEYED:
                    for row in written:
                        holders[(row["tenant"], row["task"], row["key"])] = row["id"]
        except (asyncpg.DataError, asyncpg.ProgramLimitExceededError) as error:
            raise InvalidInput("args", f"Postgres cannot store them: {error}") from error
        return holders

    async def _refuse_when_full(self, connection: Connection, messages: Sequence[Message]) -> None:
        sent = Counter(each.queue for each in messages if each.queue in self._max_depth)
        if not sent:
            return
        room = {queue: max(0, self._max_depth[queue] + 1 - count) for queue, count in sent.items()}
        for row in await connection.fetch(_VIEWS["waiting"], list(room), list(room.values())):
            if row["waiting"] >= room[row["queue"]]:
                raise QueueFull(
                    f"queue {row['queue']} holds its most, {self._max_depth[row['queue']]} messages",
                    remedy="wait until some are done, or raise its limit",
                )

    async def claim(self, queue: QueueName, owner: ProcessId, limit: int) -> list[Delivery]:
        """Take up to ``limit`` rows: lanes six to three to one, tenants by what they have in flight."""
        if limit <= 0:
            return []
        async with self._database.statements() as connection:
            return await self._claims.take(connection, queue, owner, limit)

    async def wait(self, queue: QueueName, timeout_seconds: float) -> None:
        """Return on a notification, or after the slow poll's period at the latest."""
        await self._wakeups.wait(queue, timeout_seconds)

    async def renew(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Extend the leases by Postgres' clock; returns the lost ones."""
        if not deliveries:
            return []
        async with self._database.statements() as connection:
            found = await connection.fetch(
                _DELIVERY["renew"], *rows.claim_columns(deliveries), self.lease_seconds
            )
        lost = {(row["id"], row["fence"]) for row in found}
        return [each for each in deliveries if (each.id, each.fence) in lost]

    async def mark_started(self, deliveries: Sequence[Delivery]) -> None:
        """Note that their handlers were entered."""
        if deliveries:
            async with self._database.statements() as connection:
                await connection.execute(_DELIVERY["mark_started"], *rows.claim_columns(deliveries))

    async def settle(self, settlements: Sequence[Settlement]) -> list[Verdict]:
        """Write all outcomes in one statement; a second one only for rows that were locked, or are stale."""
        open_: dict[tuple[MessageId, int], Settlement] = {}
        answers: list[Verdict | None] = []
        for each in settlements:
            mark = (each.delivery.id, each.delivery.fence)
            if isinstance(each.outcome, Completed) and each.outcome.settled:
                answers.append(Verdict.ACCEPTED)
            elif mark in open_:
                answers.append(Verdict.STALE)
            else:
                answers.append(None)
                open_[mark] = each
        verdicts: dict[tuple[MessageId, int], Verdict] = {}
        if open_:
            async with self._database.statements() as connection:
                verdicts = await self._settle_free(connection, list(open_.values()))
                missing = [each for mark, each in open_.items() if mark not in verdicts]
                if missing:
                    verdicts |= await self._settle(connection, SETTLE_WAITING, missing)
        for each, verdict in verdicts.items():
            if verdict is Verdict.RERUN:
                self._wakeups.wake(open_[each].delivery.queue)
        marks = iter(open_)
        return [each if each is not None else verdicts.get(next(marks), Verdict.STALE) for each in answers]

    async def _settle_free(
        self, connection: Connection, settlements: Sequence[Settlement]
    ) -> dict[tuple[MessageId, int], Verdict]:
        """Settle the rows that nobody holds."""
        owner = settlements[0].delivery.owner
        for each in settlements:
            if not isinstance(each.outcome, Completed) or each.delivery.owner != owner:
                return await self._settle(connection, SETTLE, settlements)
        verdicts: dict[tuple[MessageId, int], Verdict] = {}
        for part in _parts(settlements):
            ids = [each.delivery.id for each in part]
            fences = [each.delivery.fence for each in part]
            call = partial(connection.fetch, _COMPLETE, ids, fences, owner)
            for row in await again_after_deadlock(call):
                verdicts[(row["id"], row["fence"])] = _VERDICTS[row["verdict"]]
        return verdicts

    async def _settle(
        self, connection: Connection, query: str, settlements: Sequence[Settlement]
    ) -> dict[tuple[MessageId, int], Verdict]:
        verdicts: dict[tuple[MessageId, int], Verdict] = {}
        for part in _parts(settlements):
            columns = (*rows.settlement_columns(part), self._crashes.child_limit)
            for row in await again_after_deadlock(lambda given=columns: connection.fetch(query, *given)):
                verdicts[(row["id"], row["fence"])] = _VERDICTS[row["verdict"]]
        return verdicts

    @asynccontextmanager
    async def transaction(self, delivery: Delivery) -> AsyncGenerator[Connection]:
        """The handler's own transaction, which ends with the settle of its job."""
        async with self._database.transaction(delivery.tenant) as connection:
            held = await connection.fetchval(_DELIVERY["hold"], delivery.id, delivery.fence, delivery.owner)
            if not held:
                raise LeaseLost(f"job {delivery.id} was taken over, or has ended")
            yield connection
            done = Settlement(delivery=delivery, outcome=Completed())
            if not await self._settle(connection, SETTLE, [done]):
                raise LeaseLost(f"job {delivery.id} was settled inside its own transaction")

    async def progress(self, delivery: Delivery, *, stage: str, done: int | None, total: int | None) -> bool:
        """Record the progress and reset the crash budgets."""
        async with self._database.statements() as connection:
            return bool(
                await connection.fetchval(
                    _DELIVERY["progress"],
                    delivery.id,
                    delivery.fence,
                    delivery.owner,
                    rows.printable(stage, 200),
                    done,
                    total,
                )
            )

    async def cancel_requested(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Those whose flag is set."""
        if not deliveries:
            return []
        ids, fences, _ = rows.claim_columns(deliveries)
        async with self._database.statements() as connection:
            found = await connection.fetch(_DELIVERY["cancel_requested"], ids, fences)
        flagged = {(row["id"], row["fence"]) for row in found}
        return [each for each in deliveries if (each.id, each.fence) in flagged]


def _parts(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[at : at + ROWS_PER_STATEMENT] for at in range(0, len(items), ROWS_PER_STATEMENT)]
