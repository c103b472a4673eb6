"""What operators ask of stream queues: pause, bulk cancellation, who waits for what."""

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from hive.broker.port import TenantBacklog
from hive.broker.stream_keys import QueueKeys, keys_of
from hive.broker.stream_upkeep import StreamUpkeep
from hive.broker.wire import Unparsable, decode
from hive.errors import InvalidInput
from hive.ids import MessageId, ProcessId, QueueName, TaskName, TenantId

PAUSED: Final = "hive:stream:paused"
CANCELLED_PER_CALL: Final = 500


class StreamOperations(StreamUpkeep):
    """The operators' part of the stream broker."""

    async def announce(self, owner: ProcessId, slots: Mapping[QueueName, int]) -> None:
        """Note the live slots of ``owner``; they are forgotten when they are not repeated for a lease."""
        del owner
        for queue in slots:
            keys_of(queue)

    async def pause(self, queue: QueueName) -> None:
        """Hand out nothing more of ``queue``."""
        keys_of(queue)
        with self._store.translating("pausing a queue"):
            await self._store.client.execute_command("SADD", PAUSED, queue)

    async def resume(self, queue: QueueName) -> None:
        """Hand out messages of ``queue`` again."""
        with self._store.translating("resuming a queue"):
            await self._store.client.execute_command("SREM", PAUSED, queue)

    async def paused(self) -> frozenset[QueueName]:
        """The paused queues."""
        with self._store.translating("listing paused queues"):
            found: Any = await self._store.client.execute_command("SMEMBERS", PAUSED)
        return frozenset(QueueName(each.decode()) for each in found)

    async def cancel_where(
        self,
        *,
        queue: QueueName | None = None,
        tenant: TenantId | None = None,
        task: TaskName | None = None,
    ) -> int:
        """Cancel what fits, in batches."""
        if queue is None and tenant is None and task is None:
            raise InvalidInput("filter", "none was given")
        touched = 0
        for each in [queue] if queue is not None else await self._all_queues():
            keys = keys_of(each)
            fitting: list[str] = []
            async for id, record in self._records(keys):
                if tenant is not None and record.get(b"t", b"").decode() != tenant:
                    continue
                if task is not None and await self._task_of(keys, record) != task:
                    continue
                fitting.append(id)
            for at in range(0, len(fitting), CANCELLED_PER_CALL):
                touched += await self._scripts.cancel(
                    keys, tenant or "*", fitting[at : at + CANCELLED_PER_CALL]
                )
        return touched

    async def backlog(
        self, queue: QueueName, *, after: TenantId | None = None, limit: int = 100
    ) -> list[TenantBacklog]:
        """What each tenant has, in the order of their ids; system work first."""
        now = await self._now_ms()
        counts: dict[str, tuple[int, int, int | None]] = {}
        async for _, record in self._records(keys_of(queue)):
            tenant, state = record.get(b"t", b"").decode(), record.get(b"s")
            waiting, running, since = counts.get(tenant, (0, 0, None))
            if state == b"w":
                mine = int(record.get(b"q") or record[b"p"])
                since = mine if since is None else min(since, mine)
            counts[tenant] = (waiting + (state == b"w"), running + (state == b"r"), since)
        return [
            TenantBacklog(
                tenant=TenantId(tenant) if tenant else None,
                waiting=waiting,
                running=running,
                oldest_seconds=None if since is None else max(0.0, (now - since) / 1000),
            )
            for tenant, (waiting, running, since) in sorted(counts.items())
            if (after is None or tenant > after) and (waiting or running)
        ][:limit]

    async def position(self, id: MessageId) -> int | None:
        """How many stand before it in its tenant's line."""
        for queue in await self._all_queues():
            keys = keys_of(queue)
            with self._store.translating("reading a record"):
                mine: Any = await self._store.client.hgetall(keys.record(id))
            if mine.get(b"s") == b"w":
                place = _place(mine)
                before = 0
                async for _, record in self._records(keys):
                    same = record.get(b"s") == b"w" and record.get(b"t") == mine.get(b"t")
                    before += same and _place(record) < place
                return min(before, 10_001)
        return None

    async def _now_ms(self) -> int:
        with self._store.translating("reading the time"):
            seconds, microseconds = await self._store.client.time()  # pyright: ignore[reportGeneralTypeIssues]
        return int(seconds) * 1000 + int(microseconds) // 1000

    async def _records(self, keys: QueueKeys) -> AsyncIterator[tuple[str, dict[bytes, bytes]]]:
        prefix = keys.scripts[9]
        with self._store.translating("listing messages"):
            async for key in self._store.client.scan_iter(f"{prefix}*", count=1_000):
                record: Any = await self._store.client.hgetall(key)
                if record:
                    yield key.decode()[len(prefix) :], record

    async def _task_of(self, keys: QueueKeys, record: dict[bytes, bytes]) -> str | None:
        wire = record.get(b"m")
        if wire is None:
            lane, entry = keys.scripts[int(record[b"l"]) - 1], record[b"e"]
            with self._store.translating("reading an entry"):
                found: Any = await self._store.client.xrange(lane, entry, entry)
            wire = found[0][1].get(b"m", b"") if found else b""
        try:
            return decode(wire, keys.queue).task
        except Unparsable:
            return None


def _place(record: dict[bytes, bytes]) -> tuple[int, int, int]:
    milliseconds, _, number = record[b"e"].partition(b"-")
    return int(record[b"l"]), int(milliseconds), int(number)
