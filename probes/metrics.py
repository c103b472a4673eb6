"""Prometheus metrics: the one place that knows the library, in a registry of hive's own.

Counters and histograms are fed by events; gauges are read when somebody scrapes. Labels are bounded: pool,
queue, task, outcome, service, store, provider. Never a tenant, a job or a message: per-tenant figures come
from the API.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

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

Reading = Callable[[], Mapping[tuple[str, ...], float]]


class Metrics:
    """Everything a scrape shows. ``wire`` it to the bus once; ``gauge`` adds figures that others know."""

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)  # memory, CPU, open files of this process
        self._gauges = _Gauges()
        self._registry.register(self._gauges)
        self._queues: dict[str, tuple[float, QueueMeasured]] = {}
        self._stores: dict[str, bool] = {}
        self._services: dict[str, str] = {}
        self._leading, self._term = False, 0

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"hive_{name}", text, labels, registry=self._registry)

        def counters(name: str, text: str, *labels: str) -> Callable[..., Counter]:
            return cache(counter(name, text, *labels).labels)  # by itself it looks four times as long

        self._published = counters("messages_published", "Messages accepted by a broker.", "queue")
        self._claimed = counters("messages_claimed", "Messages claimed by a pool.", "pool", "queue")
        self._started = counters("jobs_started", "Handlers entered.", "pool", "queue", "task")
        self._settled = counters("jobs_settled", "Jobs settled.", "pool", "queue", "task", "outcome")
        self._restarts = counter("service_failures", "Failures of a supervised service.", "service")
        self._elections = counter("leader_elections", "How often this process became leader.")
        self._stalls = counter("loop_stalls", "How often the event loop stood still.")
        self._throttles = counter(
            "provider_throttles", "Refusals of a provider that has too much to do.", "provider"
        )
        self._fetches = counter("fetch_exits", "Fetch children that ended.", "exit")
        run_seconds = Histogram(
            "hive_job_run_seconds",
            "Time in the handler.",
            ("pool", "task"),
            buckets=RUN_SECONDS,
            registry=self._registry,
        )
        self._run_seconds: Callable[..., Histogram] = cache(run_seconds.labels)
        self._fetch_seconds = Histogram(
            "hive_fetch_seconds", "Life of a fetch child.", buckets=FETCH_SECONDS, registry=self._registry
        )
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
        self._gauges.add(f"hive_{name}", text, labels, read)

    def wire(self, events: Events) -> None:
        """Count what happens on the bus from here on."""
        events.subscribe(JobPublished, lambda event: self._published(event.queue).inc(event.count))
        events.subscribe(JobClaimed, lambda event: self._claimed(event.pool, event.queue).inc(event.count))
        events.subscribe(JobStarted, lambda event: self._started(event.pool, event.queue, event.task).inc())
        events.subscribe(JobSettled, self._on_settled)
        events.subscribe(ServiceChanged, self._on_service)
        events.subscribe(LeaderChanged, self._on_leader)
        events.subscribe(StoreChanged, lambda event: self._stores.update({event.store: event.up}))
        events.subscribe(LoopStalled, lambda event: self._stalls.inc())
        events.subscribe(ProviderThrottled, lambda event: self._throttles.labels(event.provider).inc())
        events.subscribe(FetchExited, self._on_fetch)
        events.subscribe(QueueMeasured, self._on_queue)

    def render(self) -> bytes:
        """The text a scrape gets; its type is ``content_type``."""
        return generate_latest(self._registry)

    def _on_settled(self, event: JobSettled) -> None:
        self._settled(event.pool, event.queue, event.task, event.outcome).inc()
        self._run_seconds(event.pool, event.task).observe(event.run_seconds)

    def _on_service(self, event: ServiceChanged) -> None:
        self._services[event.service] = event.state
        if event.state in {"backoff", "fatal"}:
            self._restarts.labels(event.service).inc()

    def _on_leader(self, event: LeaderChanged) -> None:
        self._leading, self._term = event.leading, event.term
        if event.leading:
            self._elections.inc()

    def _on_fetch(self, event: FetchExited) -> None:
        self._fetches.labels(event.exit).inc()
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


class _Gauges(Collector):
    """Gauges that are read at the scrape, so that nothing has to be kept up to date in between."""

    def __init__(self) -> None:
        self._readings: dict[str, tuple[str, tuple[str, ...], Reading]] = {}

    def add(self, name: str, text: str, labels: tuple[str, ...], read: Reading) -> None:
        self._readings[name] = (text, labels, read)

    def collect(self) -> Iterator[Metric]:
        for name, (text, labels, read) in self._readings.items():
            family = GaugeMetricFamily(name, text, labels=labels)
            for values, figure in read().items():
                family.add_metric(values, figure)
            yield family
