"""A quick part of ``make chaos``: processes are killed and frozen, stores wiped and cut off, and no effect is
lost or doubled, no slot and no connection leaked.
"""

import pytest

from arena import arena
from scenarios import SCENARIOS
from trial import Trial

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(240)]


@pytest.mark.parametrize(
    ("scenario", "carrier"),
    [
        ("kill", "ledger"),
        ("kill", "stream"),
        ("freeze", "ledger"),
        ("freeze", "stream"),
        ("redis_flushall", "stream"),
        ("redis_cut", "stream"),
        ("postgres_terminate", "ledger"),
    ],
)
async def test_nothing_is_lost_doubled_or_leaked(
    postgres_dsn: str, valkey_url: str, scenario: str, carrier: str
) -> None:
    async with arena(postgres_dsn, valkey_url) as place:
        # Speed is `make chaos`'s matter: a test run shares its machine with anything.
        trial = Trial(
            SCENARIOS[scenario], carrier, place, seed=1, jobs=200, lease_seconds=2.0, full_speed=0.1
        )
        verdict = await trial.run()
    assert verdict.clean, verdict
