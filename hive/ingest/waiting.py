"""Why an active attempt does not move: queued, throttled and failing differ, and each is shown as itself."""

from collections.abc import Mapping
from typing import Any

CATCHING_UP = "waiting for processing to catch up"
"""The stage a fetch job reports while too many of its batches are unprocessed."""


def waiting_for(facts: Mapping[str, Any]) -> str | None:
    """What the attempt waits for, from the states of its jobs; None while something of it runs.

    ``facts``: a row of the attempts' view. The fetch speaks first, then the batches.
    """
    fetching = _fetching(facts) if facts["fetch_outcome"] is None else None
    if fetching is not None:
        return fetching
    if facts["batches_running"]:
        return None
    if facts["batches_retrying"]:
        return f"the next try of {_batches(facts['batches_retrying'])}: {facts['batches_error']}"
    if facts["fetch_outcome"] is not None and facts["batches_pending"]:
        return f"a slot to process {_batches(facts['batches_pending'])}"
    return None


def _fetching(facts: Mapping[str, Any]) -> str | None:
    state = facts["job_state"]
    if state in ("pending", "scheduled"):
        return "a slot to fetch"
    if state == "retrying":
        return f"the next try: {facts['job_error']}"
    if state == "running" and facts["job_stage"] == CATCHING_UP:
        if facts["batches_retrying"] and not facts["batches_running"]:
            return f"processing to catch up: {facts['batches_error']}"
        return "processing to catch up"
    if state != "running":
        return "the next check, which starts it anew"
    return None


def _batches(count: int) -> str:
    return "1 batch" if count == 1 else f"{count} batches"
