"""Root without the right to change its user: what does a fetch child say?"""

import asyncio

from fetch_harness import warm
from hive.ingest.fetching import FetchFailed


async def main() -> None:
    async with warm() as hive:
        (failed,) = await hive.frames(["documents", 1])
        assert isinstance(failed, FetchFailed)
        print(failed.code)


asyncio.run(main())
