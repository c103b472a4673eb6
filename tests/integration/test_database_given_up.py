"""What is given up half-way on a connection of the pool leaves it in order, and says nothing."""

import asyncio
from typing import Any

from cancelling import Tally, cancel_everywhere
from hive.ids import DEFAULT_TENANT
from hive.store.postgres import Database


async def test_a_transaction_given_up_at_any_moment_is_no_error(database: Database) -> None:
    said: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: said.append(context))
    tally = Tally()

    async def work() -> None:
        async with database.transaction(DEFAULT_TENANT) as connection, connection.transaction():
            await connection.fetchval("select 1")

    async def autocommit() -> None:
        async with database.acquire() as connection, connection.transaction():
            await connection.fetchval("select 1")

    await cancel_everywhere("a tenant's transaction", work, tally)
    await cancel_everywhere("a plain transaction", autocommit, tally)
    assert tally.cancelled > 8
    assert tally.lost == []
    assert said == []
