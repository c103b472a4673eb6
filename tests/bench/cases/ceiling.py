"""What the stores give to a client without any framework: the ceiling under which every system works."""

import asyncio
import time
from typing import Any

import asyncpg
import redis.asyncio
from bench import Bench, report
from measures import Figure, Sheet

COUNT = 20_000
BODY = b'{"task":"empty","tenant":"public","args":{}}'
CLAIM = """
update item set state = 1, fence = fence + 1
where id in (select id from item where state = 0 order by id limit $1 for update skip locked)
returning id, fence
"""
DELETE = """
delete from item using unnest($1::bigint[], $2::int[]) as held (id, fence)
where item.id = held.id and item.fence = held.fence
"""


def ceiling(bench: Bench) -> list[Figure]:
    """No framework: XREADGROUP, XACK, XDEL in batches; claim (SKIP LOCKED) and fenced delete of 200 rows."""
    sheet = Sheet("ceiling")
    for number in range(bench.rounds):
        bench.stores.fresh("bench_hive")
        rates = bench.stores.run(_valkey(bench.stores.redis_url))
        for name, rate in rates.items():
            sheet.add("valkey", name, "messages/s", rate)
        bench.stores.fresh("bench_hive")
        rates = bench.stores.run(_postgres(bench.stores.postgres_dsn))
        for name, rate in rates.items():
            sheet.add("postgres", name, "messages/s", rate)
        report(f"ceiling {number + 1}/{bench.rounds} {sheet.last('valkey')}; {sheet.last('postgres')}")
    return sheet.figures()


async def _valkey(url: str) -> dict[str, float]:
    client: Any = redis.asyncio.Redis.from_url(url)
    rates: dict[str, float] = {}
    try:
        began = time.perf_counter()
        for _ in range(COUNT // 500):
            async with client.pipeline(transaction=False) as pipe:
                for _ in range(500):
                    pipe.xadd("line", {b"d": BODY})
                await pipe.execute()
        rates["publish"] = COUNT / (time.perf_counter() - began)
        await client.xgroup_create("line", "all", id="0")
        rates["consume, batches of 100"] = await _drain(client, 100)
    finally:
        await client.aclose()
    return rates


async def _drain(client: Any, batch: int) -> float:
    began = time.perf_counter()
    done = 0
    while done < COUNT:
        found = await client.xreadgroup("all", "one", {"line": ">"}, count=batch)
        ids = [entry for _, entries in found for entry, _ in entries]
        async with client.pipeline(transaction=False) as pipe:
            pipe.xack("line", "all", *ids)
            pipe.xdel("line", *ids)
            await pipe.execute()
        done += len(ids)
    return COUNT / (time.perf_counter() - began)


async def _postgres(dsn: str) -> dict[str, float]:
    connection = await asyncpg.connect(dsn)
    rates: dict[str, float] = {}
    try:
        await connection.execute(
            "create table item (id bigint generated always as identity primary key, body jsonb,"
            " state int not null default 0, fence int not null default 0);"
            "create index item_waiting on item (id) where state = 0"
        )
        began = time.perf_counter()
        for _ in range(COUNT // 2000):
            await connection.execute(
                "insert into item (body) select unnest($1::jsonb[])", [BODY.decode()] * 2000
            )
        rates["publish"] = COUNT / (time.perf_counter() - began)
        await connection.execute("analyze item")
        began = time.perf_counter()
        done = 0
        while done < COUNT:
            rows = await connection.fetch(CLAIM, 200)
            await connection.execute(DELETE, [row["id"] for row in rows], [row["fence"] for row in rows])
            done += len(rows)
        rates["consume, batches of 200"] = COUNT / (time.perf_counter() - began)
    finally:
        await connection.close()
    await asyncio.sleep(0)
    return rates
