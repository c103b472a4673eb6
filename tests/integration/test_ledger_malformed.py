"""Rows that hive has not written: each is given up with a reason, and none stops a consumer."""

import json
import random
from typing import Any
from uuid import UUID

import anyio
import pytest

from hive.broker.ledger import Ledger
from hive.context import Context
from hive.ids import DEFAULT_TENANT, new_message_id
from hive.outcomes import ErrorKind
from hive.states import JobState
from hive.store.postgres import Database
from hive.tasks import task
from hive.testing.harness import QUEUE
from pool_kit import Rig

ROWS = 10_000
SEED = 20_261_130

Row = tuple[UUID, str | None, str, str, str | None, str | None, int, int, int]


def noise(dice: random.Random, longest: int) -> str:
    """Text that Postgres can store, and little else is expected of."""
    kinds = ("abc_01", " \t\n'\"\\;%{}$", "äß€\u202e\U0001f41d\ufffd\x01\x7f", "../", "\u0660٣")
    return "".join(dice.choice(dice.choice(kinds)) for _ in range(dice.randint(0, longest)))


def value(dice: random.Random, depth: int = 0) -> Any:
    """Some JSON."""
    match dice.randrange(8 if depth < 4 else 6):
        case 0:
            return None
        case 1:
            return dice.random() < 0.5
        case 2:
            return dice.randint(-(2**70), 2**70)
        case 3:
            return dice.uniform(-1e300, 1e300)
        case 4 | 5:
            return noise(dice, 30)
        case 6:
            return [value(dice, depth + 1) for _ in range(dice.randint(0, 4))]
        case _:
            return {noise(dice, 8): value(dice, depth + 1) for _ in range(dice.randint(0, 4))}


def bad_arguments(dice: random.Random) -> str:
    """JSON that the task's signature does not fit, or that Python does not read."""
    match dice.randrange(7):
        case 0:
            return "[" * 4_000 + "]" * 4_000  # Postgres stores it; Python's parser gives up
        case 1:
            return f'{{"number": {"9" * 5_000}, "more": 1}}'  # beyond Python's limit of digits
        case 2:
            return '{"number": 1e400, "number2": -0}'
        case 3:
            return json.dumps(dice.choice([None, True, 1, 1.5, "text", [], [1, {"number": 1}]]))
        case 4:
            return json.dumps({noise(dice, 9) + "_": value(dice)})
        case 5:
            return json.dumps({"number": 1, noise(dice, 9) + "_": value(dice)})
        case _:
            return "{}"


def row(dice: random.Random) -> Row:
    """A row with at least one thing wrong."""
    tenant: str | None = DEFAULT_TENANT
    name, args = "given", '{"number": 1}'
    match dice.randrange(4):
        case 0:
            args = bad_arguments(dice)
        case 1:
            name = noise(dice, 300) + "?"
        case 2:
            tenant = dice.choice(["", " ", "Public", "a" * 300, "-", "_a", noise(dice, 60) + "!"])
        case _:
            tenant = dice.choice([None, noise(dice, 60) + "!"])
            name, args = noise(dice, 60) + "?", bad_arguments(dice)
    key = dice.choice([None, noise(dice, 200)])
    # Those that share one run one after the other, each at the next poll: a few are enough.
    resource = noise(dice, 3 if dice.random() < 0.02 else 60) if dice.random() < 0.4 else None
    lane, cost, most = dice.randrange(3), dice.choice([1, 1_000_000]), dice.choice([-5, 0, 1, 4, 32_767])
    return (new_message_id(), tenant, name, args, key, resource, lane, cost, most)


@pytest.mark.timeout(300)
async def test_each_of_ten_thousand_malformed_rows_is_given_up_with_a_reason(database: Database) -> None:
    dice = random.Random(SEED)
    rows = [row(dice) for _ in range(ROWS)]
    async with database.acquire() as connection:
        await connection.execute(
            "insert into hive.job"
            " (id, tenant, queue, task, args, key, resource, lane, cost, max_attempts, state)"
            " select id, tenant, 'work', task, args::jsonb, key, resource, lane, cost, most, 'pending'"
            " from unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],"
            " $7::smallint[], $8::integer[], $9::smallint[])"
            " as given(id, tenant, task, args, key, resource, lane, cost, most) on conflict do nothing",
            *(list(column) for column in zip(*rows, strict=True)),
        )
        stored = await connection.fetchval("select count(*) from hive.job")
    assert stored > ROWS * 0.9  # some keys met by chance
    ledger = Ledger(database)
    rig = Rig(broker=ledger, stores=database, tenant=DEFAULT_TENANT, slots=50, prefetch=200)
    ran: list[int] = []

    @task(queue="work", into=rig.registry, name="given")
    async def given(context: Context, number: int) -> None:
        ran.append(number)

    async with rig.serving() as pool:
        (good,) = await rig.send(given, number=1)
        with anyio.fail_after(200):
            while (depth := await ledger.depth(QUEUE)).waiting or depth.running:
                assert not pool.slots.written_off
                await anyio.sleep(0.05)
        assert pool.ready
        assert pool.slots.in_use == 0
    assert ran == [1]
    view = await ledger.find(good)
    assert view is not None
    assert view.state is JobState.COMPLETED
    async with database.acquire() as connection:
        ends = await connection.fetch(
            "select state, error_kind, count(*) as count, min(length(error_summary)) as shortest"
            " from hive.job where id <> $1 group by state, error_kind",
            good,
        )
    assert {each["state"] for each in ends} == {"failed"}
    assert {each["error_kind"] for each in ends} == {ErrorKind.UNPARSABLE, ErrorKind.UNKNOWN_TASK}
    assert all(each["shortest"] > 0 for each in ends)
    assert sum(each["count"] for each in ends) == stored
    # And whoever looks at them is not stopped either.
    letters = await ledger.dead_letters(limit=ROWS)
    assert len(letters) == stored
    assert any(each.args is None for each in letters)
    assert len(await ledger.jobs(limit=ROWS + 1)) == stored + 1
