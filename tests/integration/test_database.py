"""Postgres through Database: isolation, translation, recycling."""

from hive.store.postgres import Database
from hive.store.redis import RedisStore


async def test_a_database_and_a_redis_answer(database: Database, redis_store: RedisStore) -> None:
    async with database.acquire() as connection:
        assert await connection.fetchval("select count(*) from tenant") == 1
    assert await redis_store.client.ping()
