"""Every query of the brokers prepares against the schema, and the hot ones walk an index."""

import re

import pytest

from hive.broker.ledger import PUBLISH_KEYED, PUBLISH_NEW, PUBLISH_UNKEYED, SETTLE_WAITING, Ledger
from hive.broker.ledger_operations import CANCEL_LINE, CANCEL_QUEUE, CANCEL_TASK
from hive.broker.ledger_upkeep import ABANDON_BY_LEASE, ABANDON_BY_OWNER
from hive.broker.queries import load
from hive.ids import QueueName, new_process_id
from hive.store.connection import Connection
from hive.store.postgres import Database

FILES = ("publish", "delivery", "settle", "sweep", "operate", "retention", "views", "stream")
PIECES = {
    *("given", "publish_unkeyed", "publish_keyed"),
    *("lost_by_lease", "lost_by_owner", "abandon", "of_line", "of_queue", "of_task", "cancel_found"),
}
QUERIES = {
    f"{file}.{name}": query for file in FILES for name, query in load(file).items() if name not in PIECES
} | {
    "publish.new": PUBLISH_NEW,
    "publish.unkeyed": PUBLISH_UNKEYED,
    "publish.keyed": PUBLISH_KEYED,
    "settle.waiting": SETTLE_WAITING,
    "sweep.abandon_by_lease": ABANDON_BY_LEASE,
    "sweep.abandon_by_owner": ABANDON_BY_OWNER,
    **{f"operate.cancel_line_{state}": query for state, query in CANCEL_LINE.items()},
    **{f"operate.cancel_queue_{state}": query for state, query in CANCEL_QUEUE.items()},
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
    assert planned == 0


@pytest.mark.parametrize("rows", [0, 1])
async def test_plans_made_for_an_empty_table_serve_a_full_one(database: Database, rows: int) -> None:
    """At worst one pairs its own rows with each other, never with the whole table (2,000,000 pairs)."""
    fill = (
        "insert into hive.job (id, queue, task, args, state)"
        " select gen_random_uuid(), 'work', 't', '{}', 'pending' from generate_series(1, $1)"
    )
    owner = "00000000-0000-0000-0000-000000000001"
    claim = f"execute claim ('work', '{owner}', 500, 60, 300, 150, 50, '', '', '', 100, false)"

    async def statement(connection: Connection, name: str) -> str:
        """``name`` over all that runs."""
        if name == "claim":
            return claim
        running = await connection.fetch("select id, fence from hive.job where state = 'running' order by id")
        ids = "array[{}]::uuid[]".format(", ".join(f"'{row['id']}'" for row in running))
        fences = "array[{}]::bigint[]".format(", ".join(str(row["fence"]) for row in running))
        if name == "complete":
            return f"execute complete ({ids}, {fences}, '{owner}')"
        each = f"array_fill({{}}, array[{len(running)}])"
        same = (ids, fences, each.format(f"'{owner}'::uuid"))
        if name == "settle":
            nothing = ", ".join(each.format(f"null::{kind}") for kind in ("text",) * 4 + ("int", "bigint"))
            outcome = (each.format("'retrying'::text"), each.format("1::float8"), nothing)
            return f"execute settle ({', '.join((*same, *outcome))}, 3)"
        return f"execute {name} ({', '.join(same)}{', 60' if name == 'renew' else ''})"

    async with database.statements() as connection:
        await connection.execute(fill, rows)
        await connection.execute("analyze hive.job")
        names = ("claim", "renew", "mark_started", "settle", "complete")
        for name in names:
            query = load("settle" if name in ("settle", "complete") else "delivery")[name]
            await connection.execute(f"prepare {name} as {query}")
            await connection.execute(await statement(connection, name))
        await connection.execute(fill, 4_000)
        for name in names:
            if name == "complete":
                await connection.execute(claim)  # none runs any more
            lines = await connection.fetch(
                f"explain (analyze, timing off) {await statement(connection, name)}"
            )
            plan = "\n".join(line["QUERY PLAN"] for line in lines)
            read = re.findall(r"actual rows=([0-9.]+) loops=(\d+)", plan)
            assert 500 <= max(float(rows) * int(loops) for rows, loops in read) <= 260_000, plan
        await connection.execute("deallocate all")
