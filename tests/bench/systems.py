"""The systems under test: how each one's worker is started, and with how many slots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """``command``: the worker's, given its slots; the first word is looked up in ``environment``.

    ``slots``: what it is measured with where nothing else is asked for. ``carrier``: hive's only.
    """

    name: str
    environment: str
    module: str
    store: Literal["redis", "postgres"]
    command: Callable[[int], Sequence[str]]
    slots: int = 100
    threads: bool = False
    carrier: str = ""

    @property
    def is_hive(self) -> bool:
        return self.environment == "hive"


def _hive(carrier: Literal["stream", "ledger"]) -> System:
    return System(
        name=f"hive {carrier}",
        environment="hive",
        module="hive_app",
        store="redis" if carrier == "stream" else "postgres",
        command=lambda _slots: ("python", "hive_app.py"),
        carrier=carrier,
    )


HIVE_STREAM = _hive("stream")
HIVE_LEDGER = _hive("ledger")
HIVES = (HIVE_STREAM, HIVE_LEDGER)

# Threads: 24 as in a usual deployment; more of them only get in each other's way where tasks are empty.
PEERS = (
    System(
        name="dramatiq",
        environment="dramatiq",
        module="dramatiq_app",
        store="redis",
        command=lambda slots: (
            *("dramatiq", "dramatiq_app", "--processes", "1", "--threads", str(slots)),
            *("--skip-logging", "--path", "."),
        ),
        slots=24,
        threads=True,
    ),
    System(
        name="taskiq",
        environment="taskiq",
        module="taskiq_app",
        store="redis",
        command=lambda slots: (
            *("taskiq", "worker", "taskiq_app:broker", "--workers", "1"),
            *("--max-async-tasks", str(slots), "--log-level", "WARNING"),
        ),
    ),
    System(
        name="arq",
        environment="arq",
        module="arq_app",
        store="redis",
        command=lambda _slots: ("arq", "arq_app.WorkerSettings", "--custom-log-dict", "quiet.LOGGING"),
    ),
    System(
        name="saq",
        environment="saq",
        module="saq_app",
        store="redis",
        command=lambda _slots: ("saq", "saq_app.settings", "--quiet"),
    ),
    System(
        name="streaq",
        environment="streaq",
        module="streaq_app",
        store="redis",
        command=lambda _slots: ("python", "quiet.py", "streaq_app"),
    ),
    System(
        name="celery",
        environment="celery",
        module="celery_app",
        store="redis",
        command=lambda slots: (
            *("celery", "-A", "celery_app", "worker", "-P", "threads", "-c", str(slots)),
            *("--prefetch-multiplier", "8", "--loglevel", "WARNING", "--without-gossip", "--without-mingle"),
        ),
        slots=24,
        threads=True,
    ),
    System(
        name="procrastinate",
        environment="procrastinate",
        module="procrastinate_app",
        store="postgres",
        command=lambda slots: (
            *("procrastinate", "--app", "procrastinate_app.app", "worker", "--concurrency", str(slots)),
        ),
    ),
)
ALL = (*HIVES, *PEERS)
