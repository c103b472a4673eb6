"""``hive probe live|ready``: reads the probe files, and nothing else.

The standard library only, and little of it: it is run every few seconds in a container that has better things
to do, so it must not import hive. It asks no store: a Redis that is away is no reason to kill a process.
"""

import os
import sys
import time
from collections.abc import Mapping, Sequence

USAGE = """usage: hive probe live|ready [--service NAME] [--state DIR]

live   exit 0 while the event loop turns and every running service gets on (--service: that one alone)
ready  exit 0 while hive consumes its queues

Exit 1 with the reason otherwise, 2 for a wrong call. DIR defaults to $HIVE_STATE_DIR, then .hive.
"""


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Run the probe with ``arguments`` (those after ``probe``); prints one line and returns the exit code."""
    verb, service, state = None, None, ""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in {"-h", "--help"}:
            sys.stdout.write(USAGE)
            return 0
        if name in {"--service", "--state"} and (equals or rest):
            value = value if equals else rest.pop(0)
            if name == "--service":
                service = value
            else:
                state = value
        elif word in {"live", "ready"} and verb is None:
            verb = word
        else:
            sys.stderr.write(f"unknown argument {word!r}\n{USAGE}")
            return 2
    if verb is None or (verb == "ready" and service is not None):
        sys.stderr.write(USAGE)
        return 2
    state = (
        state or environment.get("HIVE_STATE_DIR") or environment.get("HIVE_PROCESS__STATE_DIR") or ".hive"
    )
    reason = _not_live(state, service) if verb == "live" else _not_ready(state)
    if reason is None:
        sys.stdout.write(f"{verb}{f' {service}' if service else ''}\n")
        return 0
    sys.stdout.write(f"not {verb}: {reason}\n")
    return 1


def _not_live(state: str, service: str | None) -> str | None:
    folder = os.path.join(state, "live")
    if service is not None:
        if "/" in service or service.startswith("."):
            return f"no service is named {service!r}"
        return _too_old(folder, service)
    try:
        names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    except OSError:
        names = []
    if "hive" not in names:
        return f"no hive runs on {state}"
    reasons = [reason for name in names if (reason := _too_old(folder, name)) is not None]
    return "; ".join(reasons) or None


def _not_ready(state: str) -> str | None:
    reason = _too_old(state, "ready")
    return f"{reason} (GET /readyz says why)" if reason else None


def _too_old(folder: str, name: str) -> str | None:
    """Why the file ``name`` does not count, or None if it is fresh."""
    path = os.path.join(folder, name)
    try:
        with open(path) as file:
            limit = float(file.read())
        age = time.clock_gettime(time.CLOCK_REALTIME) - os.stat(path).st_mtime
    except FileNotFoundError:
        return f"{name} is not there"
    except (OSError, ValueError) as error:
        return f"{name} cannot be read: {error}"
    if age > limit:
        return f"{name} made no progress for {age:.0f} s"
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
