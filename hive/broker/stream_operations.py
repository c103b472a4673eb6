"""What operators ask of stream queues: pause, cancellation, counts, backlogs, positions."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from hive.broker.port import Depth, TenantBacklog
from hive.broker.stream_arguments import milliseconds, parts
from hive.broker.stream_keys import QueueKeys, keys_of
from hive.broker.stream_upkeep import StreamUpkeep
from hive.errors import InvalidInput
from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId

COUNTED_TO: Final = 10_001
KINDS_PER_CALL: Final = 1_000
IDS_PER_CALL: Final = 500


class StreamOperations(StreamUpkeep):
    """The operators' part of the stream broker."""

    async def announce(self, owner: ProcessId, slots: Mapping[QueueName, int]) -> None:
        """Note the live slots of ``owner``; they are forgotten when they are not repeated for a lease."""
        for queue, count in slots.items():
            await self._know(queue)
            await self._scripts.announce(
                keys_of(queue), owner.bytes, max(0, count), milliseconds(self.lease_seconds)
            )

    async def pause(self, queue: QueueName) -> None:
        """Hand out nothing more of ``queue``."""
        await self._know(queue)
        await self._scripts.pause(keys_of(queue), paused=True)

    async def resume(self, queue: QueueName) -> None:
        """Hand out messages of ``queue`` again."""
        await self._scripts.pause(keys_of(queue), paused=False)

    async def paused(self) -> frozenset[QueueName]:
        """The paused queues."""
        found: set[QueueName] = set()
        for queue in await self._all_queues():
            with self._store.translating("asking for paused queues"):
                value: Any = await self._store.client.execute_command("HGET", keys_of(queue).state, "paused")
            if value is not None:
                found.add(queue)
        return frozenset(found)

    async def cancel(self, ids: Sequence[MessageId], *, tenant: TenantId | None = None) -> int:
        """Cancel what waits, flag what runs. An id does not tell its queue, so every queue is asked."""
        if not ids:
            return 0
        raw = [each.bytes for each in dict.fromkeys(ids)]
        touched = 0
        for queue in await self._all_queues():
            for part in parts(raw):
                touched += await self._scripts.cancel(keys_of(queue), tenant or "*", part, again=True)
        return touched

    async def cancel_where(
        self,
        *,
        queue: QueueName | None = None,
        tenant: TenantId | None = None,
        task: TaskName | None = None,
    ) -> int:
        """Cancel what fits, in batches. It is found by an index of tenants and tasks."""
        if queue is None and tenant is None and task is None:
            raise InvalidInput("filter", "none was given", remedy="name a queue, a tenant or a task")
        touched = 0
        for each in [queue] if queue is not None else await self._all_queues():
            keys = keys_of(each)
            async for ids in self._fitting(keys, tenant or "*", task or "*"):
                touched += await self._scripts.cancel(keys, "*", ids, again=False)
        return touched

    async def _fitting(self, keys: QueueKeys, tenant: str, task: str) -> AsyncIterator[list[bytes]]:
        """The ids of the messages that fit, in batches."""
        last = b""
        batch: list[bytes] = []
        while True:
            last, kinds = await self._scripts.kinds(keys, last, tenant, task, KINDS_PER_CALL)
            for kind in kinds:
                cursor: Any = b"0"
                while True:
                    with self._store.translating("listing messages"):
                        cursor, found = await self._store.client.execute_command(  # pyright: ignore[reportGeneralTypeIssues]
                            "SSCAN", keys.kind.encode() + kind, cursor, "COUNT", IDS_PER_CALL
                        )
                    batch += found
                    if len(batch) >= IDS_PER_CALL:
                        for part in parts(list(dict.fromkeys(batch))):
                            yield list(part)
                        batch = []
                    if int(cursor) == 0:
                        break
            if not last:
                break
        for part in parts(list(dict.fromkeys(batch))):
            yield list(part)

    async def depth(self, queue: QueueName) -> Depth:
        """Counts of one queue."""
        waiting, delayed, running, oldest, _ = await self._scripts.depth(keys_of(queue))
        return Depth(
            queue=queue,
            waiting=min(waiting, COUNTED_TO),
            delayed=min(delayed, COUNTED_TO),
            running=min(running, COUNTED_TO),
            oldest_seconds=None if oldest < 0 else oldest / 1000,
        )

    async def expired(self, queue: QueueName) -> int:
        """How many messages of ``queue`` were dropped since they waited longer than they allowed."""
        return (await self._scripts.depth(keys_of(queue)))[4]

    async def backlog(
        self, queue: QueueName, *, after: TenantId | None = None, limit: int = 100
    ) -> list[TenantBacklog]:
        """What each tenant has that waits or runs, in the order of their ids; system work comes first."""
        found = await self._scripts.backlog(keys_of(queue), "*" if after is None else after, limit)
        return [
            TenantBacklog(
                tenant=TenantId(tenant.decode("utf-8", "replace")) if tenant else None,
                waiting=min(waiting, COUNTED_TO),
                running=min(running, COUNTED_TO),
                oldest_seconds=None if oldest < 0 else oldest / 1000,
            )
            for tenant, waiting, running, oldest in zip(
                found[::4], found[1::4], found[2::4], found[3::4], strict=True
            )
        ]

    async def position(self, id: MessageId) -> int | None:
        """How many of its tenant and lane stand before it."""
        for queue in await self._all_queues():
            before = await self._scripts.position(keys_of(queue), id.bytes, COUNTED_TO)
            if before >= 0:
                return before
        return None
