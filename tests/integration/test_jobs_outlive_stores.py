"""Promise 1: what a caller has committed outlives the stores. On servers as durable as hive ships them."""

import os
import signal
from pathlib import Path

import pytest

from hive.broker.ledger import Ledger
from hive.broker.port import Settlement
from hive.embedded import EmbeddedPostgres
from hive.errors import StoreDown
from hive.ids import new_process_id
from hive.outcomes import Completed
from hive.settings import Embedded, Postgres
from hive.states import JobState
from hive.store.migration import ensure_migrated
from hive.store.postgres import Database
from hive.testing.harness import QUEUE, message


async def test_a_postgres_that_crashes_loses_no_job_and_no_end(state_dir: Path) -> None:
    server = EmbeddedPostgres(state_dir, Embedded(postgres_shared_buffers_mb=16))
    try:
        dsn = await server.start()
        await ensure_migrated(dsn)
        sent, me = [message() for _ in range(300)], new_process_id()
        database = await Database.open(dsn, settings=Postgres(pool_size=2))
        ledger = Ledger(database)
        async with database.transaction() as transaction:
            await ledger.publish(sent[:100], connection=transaction)
        await ledger.publish(sent[100:])
        done = await ledger.claim(QUEUE, me, 50)
        await ledger.settle([Settlement(delivery=each, outcome=Completed()) for each in done])
        await ledger.claim(QUEUE, me, 50)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGQUIT)  # at once, without a checkpoint: it recovers from its log
        with pytest.raises(StoreDown):
            await server.run()
        await database.close()

        database = await Database.open(await server.start(), settings=Postgres(pool_size=2))
        ledger = Ledger(database)
        ended = await ledger.jobs(state=JobState.COMPLETED, limit=1_000)
        assert {each.id for each in ended} == {each.id for each in done}
        await ledger.owner_died(me)  # a claim may have been forgotten: it waits again, as after a lost lease
        left = await ledger.claim(QUEUE, new_process_id(), 1_000)
        assert {each.id for each in left} == {each.id for each in sent} - {each.id for each in done}
        await database.close()
    finally:
        await server.stop()
