"""Prometheus metrics: the one place that knows the library, in a registry of hive's own.

Counters and histograms are fed by events; gauges are read when somebody scrapes. Labels are bounded: pool,
queue, task, outcome, service, store, provider. Never a tenant, a job or a message: per-tenant figures come
from the API.

What is counted is kept as plain numbers, and the library is loaded by the first scrape: it brings a web
server of its own, which a start does not wait for, and its counters take a lock for each event.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, cast

from hive.clock import Clock
from hive.events import (
    Events,
    FetchExited,
    JobClaimed,
    JobPublished,
    JobSettled,
    JobStarted,
    LeaderChanged,
    LoopStalled,
    ProviderThrottled,
    QueueMeasured,
    ServiceChanged,
    StoreChanged,
)

QUEUE_FRESH_SECONDS = 120.0
"""The queues are counted by one process at a time: figures it did not renew since are not shown."""

RUN_SECONDS = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60, 300, 1800, 7200)
FETCH_SECONDS = (0.1, 1, 10, 60, 300, 1800, 7200, 21600)

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector

Labels = tuple[str, ...]
Reading = Callable[[], Mapping[Labels, float]]


class Metrics:
    """Everything a scrape shows. ``wire`` it to the bus once; ``gauge`` adds figures that others know."""

    content_type = "text/plain; version=1.0.0; charset=utf-8"  # as the library says it of what it renders

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._registry: CollectorRegistry | None = None
        self._families: list[_Gauge | _Counter | _Histogram] = []
        self._queues: dict[str, tuple[float, QueueMeasured]] = {}
        self._stores: dict[str, bool] = {}
        self._services: dict[str, str] = {}
        self._leading, self._term = False, 0

        def counter(name: str, text: str, *labels: str) -> _Counter:
            family = _Counter(f"hive_{name}", text, labels)
            self._families.append(family)
            return family

        self._published = counter("messages_published", "Messages accepted by a broker.", "queue")
        self._claimed = counter("messages_claimed", "Messages claimed by a pool.", "pool", "queue")
        self._started = counter("jobs_started", "Handlers entered.", "pool", "queue", "task")
        self._settled = counter("jobs_settled", "Jobs settled.", "pool", "queue", "task", "outcome")
        self._restarts = counter("service_failures", "Failures of a supervised service.", "service")
        self._elections = counter("leader_elections", "How often this process became leader.")
        self._stalls = counter("loop_stalls", "How often the event loop stood still.")
        self._throttles = counter(
            "provider_throttles", "Refusals of a provider that has too much to do.", "provider"
        )
        self._fetches = counter("fetch_exits", "Fetch children that ended.", "exit")
        self._run_seconds = _Histogram(
            "hive_job_run_seconds", "Time in the handler.", ("pool", "task"), RUN_SECONDS
        )
        self._fetch_seconds = _Histogram("hive_fetch_seconds", "Life of a fetch child.", (), FETCH_SECONDS)
        self._families += [self._run_seconds, self._fetch_seconds]
        self.gauge("store_up", "Whether a store answers.", ("store",), self._read_stores)
        self.gauge(
            "service_state", "1 for the state a service is in.", ("service", "state"), self._read_services
        )
        self.gauge("leader", "Whether this process leads.", (), lambda: {(): float(self._leading)})
        self.gauge("leader_term", "The term this process took last.", (), lambda: {(): float(self._term)})
        self.gauge(
            "queue_messages", "Messages in a queue, at most 10,001.", ("queue", "state"), self._read_queues
        )
        self.gauge(
            "queue_oldest_seconds", "Age of the oldest claimable message.", ("queue",), self._read_oldest
        )

    def gauge(self, name: str, text: str, labels: tuple[str, ...], read: Reading) -> None:
        """Show ``hive_<name>``: at each scrape ``read`` gives a value for each set of labels."""
        self._families.append(_Gauge(f"hive_{name}", text, labels, read))

    def wire(self, events: Events) -> None:
        """Count what happens on the bus from here on."""
        events.subscribe(JobPublished, lambda event: self._published.add(event.queue, count=event.count))
        events.subscribe(
            JobClaimed, lambda event: self._claimed.add(event.pool, event.queue, count=event.count)
        )
        events.subscribe(JobStarted, lambda event: self._started.add(event.pool, event.queue, event.task))
        events.subscribe(JobSettled, self._on_settled)
        events.subscribe(ServiceChanged, self._on_service)
        events.subscribe(LeaderChanged, self._on_leader)
        events.subscribe(StoreChanged, lambda event: self._stores.update({event.store: event.up}))
        events.subscribe(LoopStalled, lambda event: self._stalls.add())
        events.subscribe(ProviderThrottled, lambda event: self._throttles.add(event.provider))
        events.subscribe(FetchExited, self._on_fetch)
        events.subscribe(QueueMeasured, self._on_queue)

    def render(self) -> bytes:
        """The text a scrape gets; its type is ``content_type``."""
        from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

        if self._registry is None:
            self._registry = CollectorRegistry()
            ProcessCollector(registry=self._registry)  # memory, CPU, open files of this process
            self._registry.register(cast("Collector", self))
        return generate_latest(self._registry)

    def collect(self) -> "Iterator[Metric]":
        """Every family of hive's own, for the library."""
        return (family.shown() for family in self._families)

    def _on_settled(self, event: JobSettled) -> None:
        self._settled.add(event.pool, event.queue, event.task, event.outcome)
        self._run_seconds.observe(event.run_seconds, event.pool, event.task)

    def _on_service(self, event: ServiceChanged) -> None:
        self._services[event.service] = event.state
        if event.state in {"backoff", "fatal"}:
            self._restarts.add(event.service)

    def _on_leader(self, event: LeaderChanged) -> None:
        self._leading, self._term = event.leading, event.term
        if event.leading:
            self._elections.add()

    def _on_fetch(self, event: FetchExited) -> None:
        self._fetches.add(event.exit)
        self._fetch_seconds.observe(event.seconds)

    def _on_queue(self, event: QueueMeasured) -> None:
        self._queues[event.queue] = (self._clock.monotonic(), event)

    def _fresh_queues(self) -> list[QueueMeasured]:
        now = self._clock.monotonic()
        return [event for at, event in self._queues.values() if now - at <= QUEUE_FRESH_SECONDS]

    def _read_queues(self) -> Mapping[tuple[str, ...], float]:
        return {
            (event.queue, state): float(count)
            for event in self._fresh_queues()
            for state, count in (
                ("waiting", event.waiting),
                ("delayed", event.delayed),
                ("running", event.running),
            )
        }

    def _read_oldest(self) -> Mapping[tuple[str, ...], float]:
        return {(event.queue,): event.oldest_seconds or 0.0 for event in self._fresh_queues()}

    def _read_stores(self) -> Mapping[tuple[str, ...], float]:
        return {(store,): float(up) for store, up in self._stores.items()}

    def _read_services(self) -> Mapping[tuple[str, ...], float]:
        return dict.fromkeys(self._services.items(), 1.0)


class _Gauge:
    """Read at the scrape, so that nothing has to be kept up to date in between."""

    def __init__(self, name: str, text: str, labels: Labels, read: Reading) -> None:
        self._name, self._text, self._labels, self._read = name, text, labels, read

    def shown(self) -> "Metric":
        from prometheus_client.metrics_core import GaugeMetricFamily

        family = GaugeMetricFamily(self._name, self._text, labels=self._labels)
        for values, figure in self._read().items():
            family.add_metric(values, figure)
        return family


class _Counter:
    """A number for each set of labels, that only rises. Without labels it is there from the beginning."""

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._counts: dict[Labels, float] = {} if labels else {(): 0.0}

    def add(self, *values: str, count: float = 1.0) -> None:
        self._counts[values] = self._counts.get(values, 0.0) + count

    def shown(self) -> "Metric":
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(self._name, self._text, labels=self._labels)
        for values, count in self._counts.items():
            family.add_metric(values, count)
        return family


class _Histogram:
    """How many figures were at most as large as each bound, and their sum, for each set of labels."""

    def __init__(self, name: str, text: str, labels: Labels, bounds: Sequence[float]) -> None:
        self._name, self._text, self._labels = name, text, labels
        self._bounds = bounds
        self._sums: dict[Labels, float] = {}
        self._counts: dict[Labels, list[int]] = {}
        if not labels:
            self._begin(())

    def observe(self, figure: float, *values: str) -> None:
        if values not in self._counts:
            self._begin(values)
        self._counts[values][bisect_left(self._bounds, figure)] += 1
        self._sums[values] += figure

    def shown(self) -> "Metric":
        from prometheus_client.metrics_core import HistogramMetricFamily
        from prometheus_client.utils import floatToGoString

        family = HistogramMetricFamily(self._name, self._text, labels=self._labels)
        names = [floatToGoString(bound) for bound in (*self._bounds, float("inf"))]
        for values, counts in self._counts.items():
            buckets = [(name, float(count)) for name, count in zip(names, accumulate(counts), strict=True)]
            family.add_metric(values, buckets, self._sums[values])
        return family

    def _begin(self, values: Labels) -> None:
        self._counts[values] = [0] * (len(self._bounds) + 1)
        self._sums[values] = 0.0
