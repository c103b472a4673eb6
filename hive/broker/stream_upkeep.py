"""The stream broker's upkeep: sweeps, and dead letters."""

from collections.abc import Sequence
from typing import Final

from redis.exceptions import OutOfMemoryError

from hive.broker.graveyard import SQL, Graveyard, message_of
from hive.broker.port import DeadLetter, Message, Swept
from hive.broker.stream_arguments import message_id, milliseconds, parts, publish_arguments
from hive.broker.stream_keys import QUEUES, QueueKeys, dedup_key, keys_of
from hive.broker.stream_link import Argument
from hive.broker.stream_scripts import StreamScripts
from hive.broker.wire import encode
from hive.errors import Conflict, StoreDown
from hive.ids import MessageId, ProcessId, QueueName, TenantId
from hive.logger import get_logger
from hive.settings import Crashes
from hive.store.postgres import Database
from hive.store.redis import RedisStore

log = get_logger(__name__)

SWEPT_PER_CALL: Final = 500
ROUNDS: Final = 20  # of one sweep: what is left waits for the next
SWEEPS_PER_CLEANING: Final = 60  # dead consumers are looked for once in so many sweeps


class StreamUpkeep:
    """The part of the stream broker that is not the way of a delivery."""

    def __init__(
        self, store: RedisStore, database: Database, *, lease_seconds: float, crashes: Crashes
    ) -> None:
        self.lease_seconds = lease_seconds
        self._store = store
        self._database = database
        self._crashes = crashes
        self._scripts = StreamScripts(store)
        self._graveyard = Graveyard(store, database, self._scripts)
        self._known: set[QueueName] = set()
        self._sweeps = 0
        self._full = False

    async def sweep(self, queues: Sequence[QueueName], *, expire_leases: bool = True) -> Swept:
        """Promote what is due, bring back what was abandoned, bury what was given up."""
        due = back = failed = 0
        if not queues:
            return Swept()
        # Entered anew each time: a wiped Redis has forgotten the names.
        await self._name(queues)
        cleaning = self._sweeps % SWEEPS_PER_CLEANING == 0
        self._sweeps += 1
        for queue in queues:
            keys = keys_of(queue)
            for _ in range(ROUNDS):
                moved, taken, given_up, staged, wrong = await self._scripts.sweep(
                    keys,
                    SWEPT_PER_CALL,
                    self._crashes.hive_limit,
                    idle_ms=self._idle_ms if cleaning else "",
                    expire_leases=expire_leases,
                )
                due, back, failed = due + moved, back + taken, failed + given_up
                if staged:
                    await self._bury(keys)
                if max(moved, taken) < SWEPT_PER_CALL and not wrong:
                    break
        return Swept(due=due, expired=back, failed=failed)

    async def owner_died(self, owner: ProcessId) -> int:
        """Bring back all that a dead process held, on every queue there is, and remove its consumers."""
        back = 0
        for queue in await self._all_queues():
            keys = keys_of(queue)
            _, taken, _, staged, _ = await self._scripts.sweep(
                keys,
                SWEPT_PER_CALL,
                self._crashes.hive_limit,
                dead_owner=(owner.bytes, owner.hex),
                idle_ms=self._idle_ms,
            )
            back += taken
            if staged:
                await self._bury(keys)
        return back

    async def _bury(self, keys: QueueKeys) -> None:
        """Write dead letters; while Postgres is away they wait, and the sweep goes on."""
        try:
            await self._graveyard.bury(keys)
        except StoreDown as error:
            log.warning("stream.burial_waits", queue=keys.queue, cause=str(error))

    @property
    def _idle_ms(self) -> int:
        return milliseconds(self.lease_seconds * 10)

    async def _know(self, queue: QueueName) -> None:
        """Enter the queue in the set of all queues, once."""
        if queue not in self._known:
            await self._name([queue])

    async def _name(self, queues: Sequence[QueueName]) -> None:
        """Enter the names of queues. While memory is full that has to wait: what it is for makes room."""
        with self._store.translating("naming queues"):
            try:
                await self._scripts.link.call(("SADD", QUEUES, *queues))
            except OutOfMemoryError as error:
                if not self._full:
                    log.warning("stream.memory_full", queues=queues, cause=str(error))
                self._full = True
            else:
                self._known.update(queues)
                self._full = False

    async def _all_queues(self) -> list[QueueName]:
        with self._store.translating("listing queues"):
            found: set[bytes] = await self._store.client.execute_command("SMEMBERS", QUEUES)  # pyright: ignore[reportAssignmentType]
        return sorted(self._known | {QueueName(each.decode()) for each in found})

    async def dead_letters(
        self, *, queue: QueueName | None = None, tenant: TenantId | None = None, limit: int = 100
    ) -> list[DeadLetter]:
        """The newest first."""
        return await self._graveyard.list(queue=queue, tenant=tenant, limit=limit)

    async def purge(self, ids: Sequence[MessageId]) -> int:
        """Delete dead letters for good."""
        return await self._graveyard.purge(ids)

    async def replay(self, ids: Sequence[MessageId]) -> int:
        """Put dead letters back in line: all of those that ``ids`` names, or none.

        One that could not be read is passed over. The letters are deleted after they are sent: a crash in
        between leaves both, and a second replay finds the message in line.
        """
        async with self._database.transaction() as connection:
            found = await connection.fetch(SQL["replayable"], list(ids))
            groups: dict[QueueName, list[Message]] = {}
            for row in found:
                message = message_of(row)
                groups.setdefault(message.queue, []).append(message)
            for queue, messages in groups.items():
                await self._refuse_held(keys_of(queue), messages)
            for queue, messages in groups.items():
                for part in parts(messages):
                    arguments: list[Argument] = []
                    for each in part:
                        arguments += publish_arguments(each, encode(each), meanwhile="refuse")
                    answers = await self._scripts.publish(
                        keys_of(queue), arguments, notify=True, most=None, following=0
                    )
                    for each, holder in zip(part, answers if isinstance(answers, list) else (), strict=True):
                        if holder:
                            raise _conflict(each.id, holder)
            await connection.execute(SQL["purge"], [row["id"] for row in found])
        return len(found)

    async def _refuse_held(self, keys: QueueKeys, messages: Sequence[Message]) -> None:
        keyed = [
            (each, dedup_key(each.tenant, each.task, each.key)) for each in messages if each.key is not None
        ]
        seen: dict[bytes, Message] = {}
        holders = await self._scripts.holders(keys, [key for _, key in keyed])
        for (each, key), holder in zip(keyed, holders, strict=True):
            other = holder or (seen[key].id.bytes if key in seen else b"")
            if other and other != each.id.bytes:
                raise _conflict(each.id, other)
            seen[key] = each


def _conflict(id: MessageId, holder: bytes) -> Conflict:
    return Conflict(
        f"message {id} cannot run again: {message_id(holder)} holds the same key",
        remedy="wait for its end",
    )
