"""The ledger on a real Postgres, for the contract suite."""

from contextlib import AbstractAsyncContextManager
from datetime import timedelta

from hive.broker.ledger import Ledger
from hive.broker.port import Broker, Depth
from hive.ids import TenantId
from hive.settings import Crashes
from hive.store.connection import Connection
from hive.store.postgres import Database
from hive.testing.harness import QUEUE, assert_depth


async def weigh(database: Database, tenant: TenantId, weight: int) -> None:
    """Give a tenant its weight; its row is made where there is none."""
    async with database.acquire() as connection:
        await connection.execute(
            "insert into hive.tenant (id, schema_name, weight) values ($1, 'tenant_' || $1, $2)"
            " on conflict (id) do update set weight = excluded.weight",
            tenant,
            weight,
        )


class LedgerHarness:
    """A ledger on a database of the test's own, with a table to count effects in."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.ledger = Ledger(database, lease_seconds=60, crashes=Crashes())
        self.broker: Broker = self.ledger

    @classmethod
    async def over(cls, database: Database) -> "LedgerHarness":
        async with database.acquire() as connection:
            await connection.execute(
                "create table if not exists hive.effect (id bigint generated always as identity)"
            )
        return cls(database)

    async def peer(self) -> Ledger:
        return Ledger(self.database, lease_seconds=60, crashes=Crashes())

    async def limited(self, most: int) -> Ledger:
        return Ledger(self.database, lease_seconds=60, crashes=Crashes(), max_depth={QUEUE: most})

    async def set_weight(self, tenant: TenantId, weight: int) -> None:
        await weigh(self.database, tenant, weight)

    async def pass_time(self, seconds: float) -> None:
        async with self.database.acquire() as connection:
            await connection.execute(
                "update hive.job set run_at = run_at - $1::interval, created_at = created_at - $1::interval,"
                " lease_until = lease_until - $1::interval, expires_at = expires_at - $1::interval,"
                " finished_at = finished_at - $1::interval",
                timedelta(seconds=seconds),
            )

    async def expect_depth(self, *, waiting: int, delayed: int, running: int) -> Depth:
        async with self.database.acquire() as connection:
            row = await connection.fetchrow(
                "select count(*) filter (where state = 'pending') as waiting,"
                " count(*) filter (where state in ('scheduled', 'retrying')) as delayed,"
                " count(*) filter (where state = 'running') as running from hive.job where queue = $1",
                QUEUE,
            )
        assert row is not None
        depth = await self.ledger.depth(QUEUE)
        assert (row["waiting"], row["delayed"], row["running"]) == (
            depth.waiting,
            depth.delayed,
            depth.running,
        )
        return assert_depth(depth, waiting=waiting, delayed=delayed, running=running)

    def transaction(self) -> AbstractAsyncContextManager[Connection]:
        return self.database.transaction()

    async def effect(self, connection: Connection) -> None:
        await connection.execute("insert into hive.effect default values")

    async def effects(self) -> int:
        async with self.database.acquire() as connection:
            return await connection.fetchval("select count(*) from hive.effect")
