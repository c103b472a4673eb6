"""What a ``hive run`` has subscribed to, so that a single pool tells of each message what it would there."""

from hive.client import Client
from hive.clock import Clock
from hive.events import Events
from hive.settings import Watchdog as WatchdogSettings
from hive.tasks import Task
from probes.metrics import Metrics
from supervisor.give_ups import GiveUps
from supervisor.service import ServiceView
from supervisor.watchdog import Watchdog


class _NoServices:
    """A watchdog's, where nothing is supervised."""

    def views(self) -> list[ServiceView]:
        return []

    def restart(self, name: str, reason: str) -> None:
        raise AssertionError(name, reason)


def subscribe(events: Events, client: Client, clock: Clock, *, tick: Task[...]) -> None:
    """Metrics, give-ups and the watchdog, as ``supervisor/assembly.py`` makes them; none of them runs."""
    Metrics(clock).wire(events)
    GiveUps(client, events, tick=tick, key="tick", expires_seconds=60)
    Watchdog(_NoServices(), WatchdogSettings(), chain=None, clock=clock, events=events)
