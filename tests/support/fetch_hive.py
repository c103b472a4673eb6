"""A hive with fetch children that a test can kill: prints whom it started, one JSON line each, then waits.

python fetch_hive.py '[["grandchild", false], ["sleep", 600]]' COUNT
"""

import asyncio
import json
import sys

from fetch_harness import running, text_of
from hive.ingest.fetching import BatchReady
from pools.fetch.hardening import make_undumpable


async def main() -> None:
    make_undumpable()
    async with running() as hive, asyncio.TaskGroup() as group:
        for _ in range(int(sys.argv[2])):
            group.create_task(one(hive))


async def one(hive) -> None:  # type: ignore[no-untyped-def]
    async with hive.session(*json.loads(sys.argv[1]), stall_seconds=600, wall_seconds=600) as session:
        async for frame in session.frames():
            if isinstance(frame, BatchReady):
                print(
                    json.dumps(
                        {
                            "zygote": hive.children.nursery.zygote_pid,
                            "child": session.pid,
                            "grandchild": int(text_of([frame], "grandchild")),
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    asyncio.run(main())
