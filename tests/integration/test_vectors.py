"""Vectors on their way to Postgres and back, in every kind of connection."""

import math
from collections.abc import AsyncGenerator

import asyncpg
import pytest

from hive.settings import Postgres
from hive.store.migration import ensure_migrated
from hive.store.postgres import Database
from hive.vector import Vector

ONE = Vector.of([0.5, -1.25, 3.0])
OTHER = Vector.of([float(at) for at in range(256)])


@pytest.fixture(params=["direct", "pooler"])
async def any_database(request: pytest.FixtureRequest, postgres_dsn: str) -> AsyncGenerator[Database]:
    """Behind a pooler (two addresses that differ) no prepared statement is kept and no search path set."""
    dsn = f"{postgres_dsn}&application_name=pooled" if request.param == "pooler" else postgres_dsn
    database = await Database.open(dsn, direct_dsn=postgres_dsn, settings=Postgres(pool_size=2))
    yield database
    await database.close()


async def test_they_come_back_as_they_went(any_database: Database) -> None:
    async with any_database.acquire() as connection:
        for vector in (ONE, OTHER):
            back = await connection.fetchval("select $1::hive_ext.vector", vector)
            assert back == vector
        assert await connection.fetchval("select $1::hive_ext.vector::text", ONE) == "[0.5,-1.25,3]"
        text = await connection.fetchval("select '[0.5,-1.25,3]'::hive_ext.vector")
        assert text == ONE


async def test_many_go_as_one_array(any_database: Database) -> None:
    async with any_database.transaction() as connection:
        rows = await connection.fetch(
            "select at, v from unnest($1::hive_ext.vector[]) with ordinality as given (v, at) order by at",
            [ONE, OTHER, None, ONE],
        )
        assert [row["v"] for row in rows] == [ONE, OTHER, None, ONE]
        assert await connection.fetchval("select $1::hive_ext.vector[]", [ONE, OTHER]) == [ONE, OTHER]
        assert await connection.fetchval("select cardinality($1::hive_ext.vector[])", []) == 0


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
async def test_what_is_no_finite_number_is_refused(any_database: Database, number: float) -> None:
    async with any_database.acquire() as connection:
        with pytest.raises(asyncpg.DataError, match=r"(NaN|infinite value) not allowed"):
            await connection.fetchval("select $1::hive_ext.vector[]", [ONE, Vector.of([1.0, number])])
        assert await connection.fetchval("select $1::hive_ext.vector", ONE) == ONE


async def test_a_wrong_dimension_is_refused(any_database: Database) -> None:
    async with any_database.acquire() as connection:
        with pytest.raises(asyncpg.DataError, match="expected 3 dimensions, not 256"):
            await connection.fetchval("select $1::hive_ext.vector(3)", OTHER)
        with pytest.raises(asyncpg.DataError, match="at least 1 dimension"):
            await connection.fetchval("select $1::hive_ext.vector", Vector(b""))
        with pytest.raises(asyncpg.DataError):
            await connection.fetchval("select $1::hive_ext.vector", Vector(ONE.packed[:-1]))


async def test_a_connection_older_than_the_schema_learns_them(empty_postgres_dsn: str) -> None:
    database = await Database.open(empty_postgres_dsn, settings=Postgres(pool_size=1))
    try:
        async with database.acquire() as connection:
            before = await connection.fetchval("select pg_backend_pid()")
        await ensure_migrated(empty_postgres_dsn)
        async with database.acquire() as connection:
            assert await connection.fetchval("select pg_backend_pid()") == before
            assert await connection.fetchval("select $1::hive_ext.vector", ONE) == ONE
    finally:
        await database.close()
