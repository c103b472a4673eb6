"""hive as PID 1 of a PID namespace, as in a container: what its hard death leaves of the embedded Postgres.

The kernel kills a namespace's processes as soon as its PID 1 ends; without one (see ``test_init_process``)
nothing is cut off. Where namespaces may not be made, this is skipped.
"""

import json
import signal
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")

# What `hive run` does, as far as it matters here: a boot brings back what the dead one held, notes the starts
# of what was delivered before (pools/starts.py), then claims a new job, whose handler kills hive at once.
BOOT = """
from supervisor.reaper import become_init_if_first
become_init_if_first()
import asyncio, json, os, signal, sys
from pathlib import Path
from uuid import UUID
from hive.broker.ledger import Ledger
from hive.embedded import EmbeddedPostgres
from hive.ids import ProcessId
from hive.settings import Embedded, Postgres
from hive.store.migration import ensure_migrated
from hive.store.postgres import Database
from hive.testing.harness import QUEUE, message

async def main(state_dir, boot):
    # The server writes by itself only after a long time: what is kept was kept by its shutdown.
    server = EmbeddedPostgres(
        Path(state_dir), Embedded(postgres_shared_buffers_mb=16), options={"wal_writer_delay": "10s"}
    )
    dsn = await server.start()
    if boot == 0:
        await ensure_migrated(dsn)
    database = await Database.open(dsn, settings=Postgres(pool_size=2))
    ledger = Ledger(database)
    moved = await ledger.owner_died(ProcessId(UUID(int=boot)))
    me = ProcessId(UUID(int=boot + 1))
    again = await ledger.claim(QUEUE, me, 100)
    await ledger.mark_started([each for each in again if each.redelivered])
    async with database.acquire() as connection:
        charged = [row[0] for row in await connection.fetch("select hive_crashes from hive.job order by id")]
    await ledger.publish([message()])
    (last,) = await ledger.claim(QUEUE, me, 1)
    seen = {"moved": moved, "again": [each.redelivered for each in again], "charged": charged}
    print(json.dumps(seen), flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


@cache
def namespaces() -> bool:
    return subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0


def boot(state_dir: Path, number: int) -> dict[str, Any]:
    done = subprocess.run(
        [*UNSHARE, sys.executable, "-c", BOOT, str(state_dir), str(number)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_hard_death_is_charged_even_one_right_after_the_claim(state_dir: Path) -> None:
    if not namespaces():
        pytest.skip("PID namespaces may not be made here")
    for number in range(4):
        assert boot(state_dir, number) == {
            "moved": number,
            "again": [True] * number,
            # The first death comes before its start was noted, each later one is charged.
            "charged": [max(0, number - at - 1) for at in range(number)],
        }
