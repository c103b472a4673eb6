"""How long the standard library's ways to a child process take to its first word: prints the seconds of each.

    python library_children.py forkserver|spawn COUNT [LIBRARY …]   the libraries are preloaded

A script of its own, and a small one: both ways import the main module again in each child.
"""

import json
import multiprocessing
import sys
import time
from typing import Any

from trivial import speak

PAUSE_SECONDS = 0.1


def main(method: str, count: int, libraries: list[str]) -> list[float]:
    context: Any = multiprocessing.get_context(method)
    if method == "forkserver":
        context.set_forkserver_preload([*libraries, "trivial"])
    taken: list[float] = []
    for number in range(count + 1):
        time.sleep(PAUSE_SECONDS)
        ours, theirs = context.Pipe(duplex=False)
        began = time.monotonic()
        process = context.Process(target=speak, args=(theirs,))
        process.start()
        ours.recv_bytes()
        if number:  # the first one waits for the server
            taken.append(time.monotonic() - began)
        process.join()
        ours.close()
        theirs.close()
    return taken


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])))
