"""What a crowd costs the ledger: a claim and a cancellation by filter, beside few jobs and beside many."""

import time
from statistics import median

from bench import Bench, report
from measures import Figure, Sheet

from hive.broker.ledger import Ledger
from hive.broker.port import Settlement
from hive.ids import QueueName, TaskName, TenantId, new_process_id
from hive.outcomes import Released
from hive.settings import Postgres
from hive.store.postgres import Database

QUEUE = QueueName("bench")
CROWDS = ((1_000, 1), (1_000, 100), (1_000_000, 1), (1_000_000, 10_000))
CLAIMED = 200
CANCELLED = 1_000
TIMES = 7
FILL = """
insert into hive.job (id, tenant, queue, task, args, state, run_at)
select gen_random_uuid(), $4 || lpad((n % $2)::text, 5, '0'), $5, $3, '{}', 'pending',
    now() + n * interval '1 microsecond'
from generate_series(1, $1) as n
"""


def scale(bench: Bench) -> list[Figure]:
    """Jobs that wait in one ledger queue, of so many tenants: a claim of 200, the cancellation of the same
    1,000 among them, by tenant and by task. Medians of seven.
    """
    sheet = Sheet("scale")
    for waiting, tenants in CROWDS:
        bench.stores.fresh("bench_hive")
        figures = bench.stores.run(_measure(bench.stores.postgres_dsn, waiting, tenants))
        for metric, seconds in figures.items():
            sheet.add(f"{waiting:,} of {tenants:,} tenants", metric, "ms", seconds * 1000)
        report(f"scale {sheet.last(f'{waiting:,} of {tenants:,} tenants')}")
    return sheet.figures()


async def _measure(dsn: str, waiting: int, tenants: int) -> dict[str, float]:
    database = await Database.open(dsn, settings=Postgres(call_seconds=300))
    try:
        ledger = Ledger(database)
        async with database.acquire() as connection:
            await connection.execute(FILL, waiting, tenants, "crowd", "t", QUEUE)
            await connection.execute("vacuum analyze hive.job")
        claims: list[float] = []
        owner = new_process_id()
        for _ in range(TIMES + 6):  # the first ones are planned anew each time
            began = time.perf_counter()
            got = await ledger.claim(QUEUE, owner, CLAIMED)
            claims.append(time.perf_counter() - began)
            assert len(got) == CLAIMED
            await ledger.settle([Settlement(delivery=each, outcome=Released()) for each in got])
        return {
            f"claim {CLAIMED}": median(claims[6:]),
            f"cancel {CANCELLED:,} of a tenant": await _cancel(
                database, ledger, tenant=TenantId("victim00000")
            ),
            f"cancel {CANCELLED:,} of a task": await _cancel(database, ledger, task=TaskName("victim")),
        }
    finally:
        await database.close()


async def _cancel(
    database: Database, ledger: Ledger, *, tenant: TenantId | None = None, task: TaskName | None = None
) -> float:
    times: list[float] = []
    for _ in range(TIMES):
        async with database.acquire() as connection:
            await connection.execute(FILL, CANCELLED, 1, "victim", "victim", QUEUE)
        began = time.perf_counter()
        cancelled = await ledger.cancel_where(tenant=tenant, task=task)
        times.append(time.perf_counter() - began)
        assert cancelled == CANCELLED
    return median(times)
