"""Figures that are read when somebody scrapes: the pools' slots, the providers, the event loop's lag."""

from collections.abc import Mapping

from hive.providers import Providers
from pools.pool import WorkerPool
from probes.loop import LoopMonitor
from probes.metrics import Metrics


def add_gauges(
    metrics: Metrics, pools: Mapping[str, WorkerPool], providers: Providers, loop: LoopMonitor
) -> None:
    """Add them to ``metrics``."""
    metrics.gauge(
        "pool_slots",
        "Slots of a pool.",
        ("pool",),
        lambda: {(name,): float(pool.slots.total) for name, pool in pools.items()},
    )
    metrics.gauge(
        "pool_slots_busy",
        "Slots in use.",
        ("pool",),
        lambda: {(name,): float(pool.slots.in_use) for name, pool in pools.items()},
    )
    metrics.gauge(
        "pool_slots_lost",
        "Slots written off: their handlers cannot be ended.",
        ("pool",),
        lambda: {(name,): float(pool.slots.written_off) for name, pool in pools.items()},
    )
    metrics.gauge(
        "provider_limit",
        "Calls to a provider that may be under way at once.",
        ("provider",),
        lambda: {(each.provider,): float(each.limit) for each in providers.states()},
    )
    metrics.gauge(
        "provider_calls",
        "Calls to a provider under way.",
        ("provider",),
        lambda: {(each.provider,): float(each.under_way) for each in providers.states()},
    )
    metrics.gauge(
        "provider_waiting",
        "Handlers that wait for their turn at a provider.",
        ("provider",),
        lambda: {(each.provider,): float(each.waiting) for each in providers.states()},
    )
    metrics.gauge(
        "provider_closed_seconds",
        "How long a provider still asks for no calls.",
        ("provider",),
        lambda: {(each.provider,): each.closed_seconds for each in providers.states()},
    )
    metrics.gauge(
        "loop_lag_seconds",
        "Lag of the event loop over the last minute.",
        ("quantile",),
        lambda: {("0.5",): loop.p50_seconds, ("0.99",): loop.p99_seconds, ("1",): loop.worst_seconds},
    )
