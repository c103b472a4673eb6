"""Every query of the brokers prepares against the schema, and the hot ones walk an index."""

import pytest

from hive.broker.ledger import SETTLE_WAITING, Ledger
from hive.broker.ledger_operations import CANCEL_LINE, CANCEL_QUEUE, CANCEL_TASK
from hive.broker.ledger_upkeep import ABANDON_BY_LEASE, ABANDON_BY_OWNER
from hive.broker.queries import load
from hive.ids import QueueName, new_process_id
from hive.store.postgres import Database

FILES = ("publish", "delivery", "settle", "sweep", "operate", "retention", "views", "stream")
PIECES = {"lost_by_lease", "lost_by_owner", "abandon", "of_line", "of_queue", "of_task", "cancel_found"}
QUERIES = {
    f"{file}.{name}": query for file in FILES for name, query in load(file).items() if name not in PIECES
} | {
    "settle.waiting": SETTLE_WAITING,
    "sweep.abandon_by_lease": ABANDON_BY_LEASE,
    "sweep.abandon_by_owner": ABANDON_BY_OWNER,
    "operate.cancel_line": CANCEL_LINE,
    "operate.cancel_queue": CANCEL_QUEUE,
    "operate.cancel_task": CANCEL_TASK,
}


@pytest.mark.parametrize("name", QUERIES)
async def test_it_prepares(database: Database, name: str) -> None:
    async with database.transaction() as connection:
        await connection.execute(f"prepare it as {QUERIES[name]}")


async def test_a_claim_reads_the_line_in_order(database: Database) -> None:
    """No sort and no scan of the table, however much waits."""
    async with database.transaction() as connection:
        await connection.execute(
            "insert into hive.job (id, queue, task, args, state)"
            " select gen_random_uuid(), 'work', 't', '{}', 'pending' from generate_series(1, 20000)"
        )
        await connection.execute("analyze hive.job")
        await connection.execute(f"prepare it as {QUERIES['delivery.claim']}")
        rows = await connection.fetch(
            "explain execute it ('work', '00000000-0000-0000-0000-000000000001', 50, 60, 30, 15, 5,"
            " '', '', '', 100, false)"
        )
    plan = "\n".join(row["QUERY PLAN"] for row in rows)
    for part in ("ahead", "behind", "found"):
        lines = plan[plan.index(f"CTE {part}\n") :]
        lines = lines[: lines.index("\n  CTE ")]
        assert "Index Scan using job_line" in lines, part
        assert "Sort" not in lines, part
    assert "Seq Scan on job" not in plan


@pytest.mark.parametrize("waiting", [0, 20_000])
async def test_a_claim_is_not_planned_each_time(database: Database, waiting: int) -> None:
    ledger, owner = Ledger(database), new_process_id()
    async with database.acquire() as connection:
        await connection.execute(
            "insert into hive.job (id, queue, task, args, state)"
            " select gen_random_uuid(), 'work', 't', '{}', 'pending' from generate_series(1, $1)",
            waiting,
        )
        await connection.execute("analyze hive.job")
    for _ in range(20):
        await ledger.claim(QueueName("work"), owner, 50)
    async with database.acquire() as connection:
        planned = await connection.fetchval(
            "select custom_plans from pg_prepared_statements where statement = $1", load("delivery")["claim"]
        )
    assert planned <= 6
