"""Messages of several tenants, for the noisy neighbour.

python hive_neighbours.py hive_app fill COUNT TENANTS SECONDS   `rest`, spread over the tenants a0, a1, …
python hive_neighbours.py hive_app single COUNT PAUSE           `stamp` of tenant b, one by one
"""

import asyncio
import json
import sys
import time

from hive_app import App

from hive.ids import TenantId


async def drive(verb: str, arguments: list[str]) -> dict[str, float]:
    app = App()
    await app.open()
    began, used = time.monotonic(), time.process_time()
    try:
        match verb, arguments:
            case "fill", [count, tenants, seconds]:
                rest = (float(seconds),)
                await app.client.publish(
                    [
                        app.message("rest", rest, TenantId(f"a{number % int(tenants)}"))
                        for number in range(int(count))
                    ]
                )
            case "single", [count, pause]:
                for _ in range(int(count)):
                    await app.client.publish([app.message("stamp", (time.monotonic(),), TenantId("b"))])
                    await asyncio.sleep(float(pause))
            case _:
                raise SystemExit(f"neighbours: {verb} {arguments}?")
    finally:
        await app.close()
    return {"seconds": time.monotonic() - began, "processor": time.process_time() - used}


if __name__ == "__main__":
    print(json.dumps(asyncio.run(drive(sys.argv[2], sys.argv[3:]))))
