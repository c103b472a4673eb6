"""Job states and the one table of allowed moves.

                     ┌────────────── hand back, owner died ─────────────┐
                     ▼                                                  │
    SCHEDULED ──▶ PENDING ──── claim ────▶ RUNNING ──▶ COMPLETED         │
        │            ▲  │                    │ │ └───▶ FAILED            │
        │            │  └─▶ CANCELLED        │ └─────▶ CANCELLED         │
        └─▶ CANCELLED│      FAILED           ▼                           │
                     └────── due ──────── RETRYING ──▶ CANCELLED         │
                                             └───────────────────────────┘

SCHEDULED holds jobs whose ``run_at`` lies ahead. They stand in a state of their own so that a claim
never walks over them; the same holds for RETRYING, which waits for its back-off, or
for the provider that it was throttled by.
"""

from enum import StrEnum
from typing import Final


class JobState(StrEnum):
    """Where a job stands. The values are what the database stores and the API prints."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    RUNNING = "running"
    RETRYING = "retrying"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL: Final = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED})

MOVES: Final[dict[JobState, frozenset[JobState]]] = {
    JobState.SCHEDULED: frozenset({JobState.PENDING, JobState.CANCELLED, JobState.FAILED}),
    JobState.PENDING: frozenset({JobState.RUNNING, JobState.CANCELLED, JobState.FAILED}),
    JobState.RUNNING: frozenset(
        {
            JobState.COMPLETED,
            JobState.FAILED,
            JobState.CANCELLED,
            JobState.RETRYING,
            JobState.PENDING,  # handed back, its process died, or `rerun` was asked for
        }
    ),
    JobState.RETRYING: frozenset({JobState.PENDING, JobState.CANCELLED, JobState.FAILED}),
    JobState.COMPLETED: frozenset(),
    JobState.FAILED: frozenset({JobState.PENDING}),  # an operator's replay, nothing else
    JobState.CANCELLED: frozenset({JobState.PENDING}),  # an operator's replay, nothing else
}


def allowed(before: JobState, after: JobState) -> bool:
    """Whether a job may move from ``before`` to ``after``."""
    return after in MOVES[before]
