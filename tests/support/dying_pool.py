"""A process with one pool that is killed at the n-th await of its handler: ``dying_pool.py DSN OWNER N``."""

import asyncio
import os
import signal
import sys
from uuid import UUID

from hive.broker.ledger import Ledger
from hive.context import Context
from hive.ids import DEFAULT_TENANT, ProcessId
from hive.settings import Postgres
from hive.store.postgres import Database
from hive.tasks import task
from pool_kit import Rig
from stepping import Stepping


async def effect(context: Context) -> None:
    """One row, in the transaction that settles the job."""
    async with context.transaction() as connection:
        await connection.execute("insert into effect (job) values ($1)", context.id)


async def main(dsn: str, owner: ProcessId, at: int) -> None:
    database = await Database.open(dsn, settings=Postgres(pool_size=8, call_seconds=10))
    rig = Rig(
        slots=1,
        prefetch=0,
        broker=Ledger(database),
        stores=database,
        tenant=DEFAULT_TENANT,
        owner=owner,
    )

    async def handler(context: Context) -> None:
        await Stepping(effect(context), at, lambda: os.kill(os.getpid(), signal.SIGKILL))

    task(queue="work", name="effect", into=rig.registry)(handler)
    async with rig.serving():
        while not rig.settled:
            await asyncio.sleep(0.005)
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], ProcessId(UUID(sys.argv[2])), int(sys.argv[3])))
