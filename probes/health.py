"""Verdicts on this process's health: whether to restart it, and whether it consumes.

*Live* asks only about the process itself: it never fails because a store is away. *Ready* means consuming:
the stores answer, the schema is up to date, and every pool takes work.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hive.events import Events, ServiceChanged, StoreChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """``reasons``: why not, one line each; empty when all is well."""

    ok: bool
    reasons: tuple[str, ...] = ()


class Health:
    """Gathers facts from events and from checks that the supervisor adds."""

    def __init__(self, events: Events, *, alive: Callable[[], Mapping[str, bool]]) -> None:
        self._alive = alive
        self._checks: dict[str, Callable[[], str | None]] = {}
        self._stores_away: set[str] = set()
        self._fatal: dict[str, str] = {}
        self._closed: str | None = "hive is starting"
        events.subscribe(StoreChanged, self._on_store)
        events.subscribe(ServiceChanged, self._on_service)

    def require(self, name: str, check: Callable[[], str | None]) -> None:
        """Make readiness depend on ``check``: it returns None, or in one line what is missing."""
        self._checks[name] = check

    def open(self) -> None:
        """The start is over: from here on the facts decide."""
        self._closed = None

    def close(self, reason: str) -> None:
        """Not ready from here on, whatever the facts say: the first step of a shutdown."""
        self._closed = reason

    def live(self) -> Verdict:
        """Whether every service gets on or is being restarted. Answered on the loop: so the loop turns."""
        stuck = tuple(
            f"service {name} makes no progress" for name, gets_on in self._alive().items() if not gets_on
        )
        return Verdict(ok=not stuck, reasons=stuck)

    def ready(self) -> Verdict:
        """Whether this process consumes."""
        reasons: list[str] = []
        if self._closed is not None:
            reasons.append(self._closed)
        reasons += [f"{store} is away" for store in sorted(self._stores_away)]
        reasons += [f"service {name} is fatal: {cause}" for name, cause in sorted(self._fatal.items())]
        reasons += [reason for check in self._checks.values() if (reason := check()) is not None]
        return Verdict(ok=not reasons, reasons=tuple(reasons))

    def _on_store(self, event: StoreChanged) -> None:
        if event.up:
            self._stores_away.discard(event.store)
        else:
            self._stores_away.add(event.store)

    def _on_service(self, event: ServiceChanged) -> None:
        if event.state == "fatal":
            self._fatal[event.service] = event.cause or "it failed too often"
        else:
            self._fatal.pop(event.service, None)
