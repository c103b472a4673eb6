"""The pools hive ships with, the queues they serve, the timetable of the periodic tasks, the providers."""

from pydantic import Field

from hive.section import Section


class Pool(Section):
    """A bounded number of slots shared by the task groups of its queues."""

    slots: int = Field(ge=0, description="Handlers at once; 0 switches the pool off.")
    prefetch: int = Field(default=1, ge=0, description="Messages claimed beyond the free slots.")
    ledger: tuple[str, ...] = Field(default=(), description="Its queues in Postgres.")
    stream: tuple[str, ...] = Field(default=(), description="Its queues in Redis.")


def default_pools() -> dict[str, Pool]:
    """The pools hive ships with: DESIGN's table, one entry per row."""
    return {
        "primary": Pool(slots=4, prefetch=1, stream=("coordination",)),
        "light": Pool(
            slots=24,
            prefetch=8,
            ledger=("connector_deletion", "subscriptions"),
            stream=("metadata_sync", "permissions_upsert", "checkpoint_cleanup", "attempt_cleanup"),
        ),
        "heavy": Pool(
            slots=4,
            ledger=("connector_pruning", "permission_sync", "group_sync", "hierarchy_fetch", "export"),
        ),
        "fetching": Pool(slots=2, ledger=("connector_fetching",)),
        "processing": Pool(slots=6, ledger=("document_processing",)),
        "user_files": Pool(slots=2, ledger=("user_file_processing", "user_file_sync", "user_file_delete")),
        "scheduled": Pool(slots=4, ledger=("scheduled_tasks",)),
        "monitoring": Pool(slots=1, stream=("monitoring",)),
    }


def default_schedules() -> dict[str, float]:
    """Seconds between two ticks of each periodic task. 0 switches one off."""
    return {
        "check_for_indexing": 15,
        "check_for_attempt_cleanup": 1800,
        "monitor_processes": 300,
        "monitor_queues": 10,
        "heartbeat": 60,
    }


def default_providers() -> dict[str, int]:
    """The most calls to a provider at once; ``default`` is for those not named."""
    return {"default": 8, "embedding": 8}
