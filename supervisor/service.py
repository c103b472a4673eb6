"""A supervised service as a value: what to run, how its health is judged, and how it looks from outside.

::

    STARTING ──▶ RUNNING ──▶ STOPPED                (asked to)
        ▲           │ failed, or returned unasked
        └─ BACKOFF ◀┤
                    └──▶ FATAL                      (its restart budget is used up)
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum

from hive.errors import HiveError
from hive.pulse import Pulse


def pool_service(pool: str) -> str:
    """What the service of ``pool`` is called."""
    return f"pool.{pool}"


class ServiceState(StrEnum):
    """Where a service stands; the values are what ``ServiceChanged`` carries and the API prints."""

    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"
    FATAL = "fatal"
    STOPPED = "stopped"


class FatalService(HiveError):
    """A critical service failed more often than its restart budget allows. Exit code 1."""

    code = "fatal_service"

    def __init__(self, service: str, cause: str) -> None:
        super().__init__(
            f"service {service!r} keeps failing: {cause}",
            remedy="its log lines before this one say why; services.restart_limit sets how often it may",
        )
        self.service = service


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """``run`` goes on until it is cancelled; returning or raising before that is a failure: it is run again.

    ``critical``: out of its restart budget it ends the process, any other one is left FATAL and shown.
    ``pulse``: beaten by the service at the end of each real round; without one its health is that it runs.
    ``ready``: awaited beside ``run`` at each start; until it returns the service counts as STARTING.
    ``needs``: names of services that must be RUNNING before this one is started, and started again.
    """

    name: str
    run: Callable[[], Awaitable[None]]
    critical: bool = False
    pulse: Pulse | None = None
    ready: Callable[[], Awaitable[None]] | None = None
    needs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceView:
    """A service as the API shows it. ``cause`` is why it last failed or was restarted."""

    name: str
    state: ServiceState
    critical: bool
    restarts: int
    since_seconds: float  # how long it has been in this state
    cause: str | None
    pulse_age_seconds: float | None
    pulse_period_seconds: float | None
    stale: bool  # running, and no round was finished for three periods

    @property
    def alive(self) -> bool:
        """Whether someone takes care of it: it makes progress, or its supervisor is about to start it again.

        A service in BACKOFF counts as alive, so that an outage of a store never looks like a dead process.
        """
        match self.state:
            case ServiceState.STARTING | ServiceState.BACKOFF:
                return True
            case ServiceState.RUNNING:
                return not self.stale
            case ServiceState.FATAL | ServiceState.STOPPED:
                return False
