"""Who publishes the jobs of a trial, and does not let an outage stop it: what got no answer is sent again."""

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any, Self
from uuid import UUID

from consumer import QUEUE, STORE_SECONDS, declare, patiently
from hive.broker.ledger import Ledger
from hive.broker.port import Broker
from hive.broker.streams import Streams
from hive.client import Client
from hive.errors import StoreDown
from hive.ids import DEFAULT_TENANT
from hive.settings import Postgres, Redis
from hive.store.postgres import Database
from hive.store.redis import RedisStore
from hive.tasks import Registry
from watch import Watch

CHUNK = 100
AHEAD = 500
"""How many jobs it keeps in line, so that there is always work and never all of it."""
AGAIN_SECONDS = 0.5


class Publisher:
    """Publishes numbers from 0 on: ``at_least`` of them, and more until ``finish`` is called.

    ``regenerates``: from now on, what has no effect yet is published again and again, as a tick would.
    """

    def __init__(
        self, watch: Watch, *, carrier: str, dsn: str, redis_url: str, at_least: int, seed: int
    ) -> None:
        self.regenerates = False
        self.sent = 0
        self.repeated: set[UUID] = set()
        """Messages whose first publish got no answer."""
        self._watch = watch
        self._carrier = carrier
        self._dsn = dsn
        self._redis_url = redis_url
        self._at_least = at_least
        self._random = random.Random(seed)
        self._finishing = False
        self._messages: list[Any] = []
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        database = await patiently(
            lambda: Database.open(self._dsn, settings=Postgres(pool_size=2, call_seconds=STORE_SECONDS))
        )
        self._stack.push_async_callback(database.close)
        broker: Broker
        if self._carrier == "stream":
            redis = await patiently(
                lambda: RedisStore.open(self._redis_url, Redis(call_seconds=STORE_SECONDS))
            )
            self._stack.push_async_callback(redis.close)
            broker = Streams(redis, database)
        else:
            broker = Ledger(database)
        self._broker = broker
        registry = Registry()
        self._task = declare(registry, self._carrier)
        self._client = Client(routes={QUEUE: broker}, registry=registry)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    def finish(self) -> None:
        """No more than ``at_least`` are needed."""
        self._finishing = True

    async def run(self) -> None:
        """Publish to the end."""
        loop = asyncio.get_running_loop()
        again_at = 0.0
        while True:
            done = await self._watch.done()
            enough = self._finishing and self.sent >= self._at_least
            if not enough and self.sent - done < AHEAD:
                messages = self._make(range(self.sent, self.sent + CHUNK))
                self._messages += messages
                await self._publish(messages)
                self.sent += CHUNK
                continue
            if enough and (done >= self.sent or not self.regenerates):
                return
            if self.regenerates and loop.time() >= again_at:
                missing = await self._watch.missing(self.sent)
                await self._publish([self._messages[number] for number in missing])
                again_at = loop.time() + AGAIN_SECONDS
            await asyncio.sleep(0.02)

    def _milliseconds(self) -> int:
        """Of different lengths, so that jobs do not all stand at the same place when a fault comes."""
        return self._random.randint(20, 60)

    def _make(self, numbers: range) -> list[Any]:
        return [
            self._client.message(
                self._task,
                {"number": number, "milliseconds": self._milliseconds()},
                tenant=DEFAULT_TENANT,
                key=str(number) if self._carrier == "stream" else None,
                while_running="drop",
            )
            for number in numbers
        ]

    async def _publish(self, messages: list[Any]) -> None:
        while True:
            try:
                await self._broker.publish(messages)
                return
            except StoreDown:
                self.repeated |= {each.id for each in messages}
                await asyncio.sleep(0.1)
