"""Verdicts and metrics from events: what an orchestrator and a scrape see."""

import threading
import time

import anyio
import structlog
from prometheus_client.parser import text_string_to_metric_families

from hive.events import (
    Events,
    JobClaimed,
    JobPublished,
    JobSettled,
    JobStarted,
    LeaderChanged,
    LoopStalled,
    QueueMeasured,
    ServiceChanged,
    StoreChanged,
)
from hive.ids import QueueName, TenantId, new_message_id
from hive.settings import Probes
from hive.testing.manual_clock import ManualClock
from patience import until
from probes.health import Health
from probes.loop import LoopMonitor
from probes.metrics import Metrics

QUEUE = QueueName("coordination")


def test_ready_means_consuming_and_says_why_not() -> None:
    events = Events()
    missing: list[str] = ["pool light is not consuming"]
    health = Health(events, alive=dict)
    health.require("pools", lambda: missing[0] if missing else None)
    assert health.ready().reasons == ("hive is starting", "pool light is not consuming")
    health.open()
    missing.clear()
    assert health.ready().ok
    events.publish(StoreChanged(store="redis", up=False))
    events.publish(ServiceChanged(service="beat", state="fatal", cause="ValueError: x"))
    assert health.ready().reasons == ("redis is away", "service beat is fatal: ValueError: x")
    assert health.live().ok
    events.publish(StoreChanged(store="redis", up=True))
    events.publish(ServiceChanged(service="beat", state="running"))
    assert health.ready().ok
    health.close("hive is shutting down")
    assert health.ready().reasons == ("hive is shutting down",)


def test_live_fails_only_for_a_service_that_makes_no_progress() -> None:
    alive = {"pool light": True, "beat": True}
    events = Events()
    health = Health(events, alive=lambda: alive)
    events.publish(StoreChanged(store="postgres", up=False))
    assert health.live().ok
    alive["beat"] = False
    assert health.live().reasons == ("service beat makes no progress",)


def samples(metrics: Metrics) -> dict[tuple, float]:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_metrics_count_events_under_bounded_labels() -> None:
    clock, events = ManualClock(), Events()
    metrics = Metrics(clock)
    metrics.wire(events)
    metrics.gauge("pool_slots", "Slots.", ("pool",), lambda: {("light",): 24.0})
    tenant, job = TenantId("acme_corporation"), new_message_id()
    events.publish(JobPublished(queue=QUEUE, count=7))
    events.publish(JobClaimed(pool="primary", queue=QUEUE, count=5))
    events.publish(JobStarted(pool="primary", queue=QUEUE, task="heartbeat", job=job, tenant=tenant))
    for outcome in ("completed", "completed", "failed"):
        events.publish(
            JobSettled(
                pool="primary",
                queue=QUEUE,
                task="heartbeat",
                job=job,
                tenant=tenant,
                outcome=outcome,
                run_seconds=0.2,
            )
        )
    events.publish(LeaderChanged(leading=True, term=4))
    events.publish(StoreChanged(store="redis", up=False))
    events.publish(ServiceChanged(service="beat", state="backoff", cause="x"))
    events.publish(LoopStalled(seconds=3))
    events.publish(QueueMeasured(queue=QUEUE, waiting=10_001, delayed=1, running=2, oldest_seconds=4.5))
    seen = samples(metrics)
    pool, queue, task = ("pool", "primary"), ("queue", "coordination"), ("task", "heartbeat")
    assert seen["hive_messages_published_total", queue] == 7
    assert seen["hive_messages_claimed_total", pool, queue] == 5
    assert seen["hive_jobs_started_total", pool, queue, task] == 1
    assert seen["hive_jobs_settled_total", ("outcome", "completed"), pool, queue, task] == 2
    assert seen["hive_jobs_settled_total", ("outcome", "failed"), pool, queue, task] == 1
    assert seen["hive_job_run_seconds_count", pool, task] == 3
    assert seen["hive_leader",] == 1
    assert seen["hive_leader_term",] == 4
    assert seen["hive_store_up", ("store", "redis")] == 0
    assert seen["hive_service_state", ("service", "beat"), ("state", "backoff")] == 1
    assert seen["hive_queue_messages", queue, ("state", "waiting")] == 10_001
    assert seen["hive_queue_oldest_seconds", queue] == 4.5
    assert seen["hive_pool_slots", ("pool", "light")] == 24
    assert seen["process_resident_memory_bytes",] > 1_000_000
    assert "acme" not in metrics.render().decode()
    assert str(job) not in metrics.render().decode()

    clock.advance(121)
    assert ("hive_queue_oldest_seconds", queue) not in samples(metrics), "another process counts it now"


async def test_loop_lag_is_measured_and_a_standstill_is_dumped_while_it_lasts() -> None:
    events, stalls = Events(), []
    events.subscribe(LoopStalled, stalls.append)
    monitor = LoopMonitor(Probes(loop_sample_seconds=0.01, loop_stall_seconds=0.2), events)
    with structlog.testing.capture_logs() as captured:
        async with anyio.create_task_group() as group:
            group.start_soon(monitor.run)
            for _ in range(5):
                await monitor.run_once()
            block_the_loop_until(lambda: any(line["event"] == "loop.stalled" for line in captured))
            await until(lambda: stalls)
            group.cancel_scope.cancel()
    (line,) = [line for line in captured if line["event"] == "loop.stalled"]
    assert "block_the_loop_until" in line["stacks"].split("thread ")[1]
    assert stalls[0].seconds >= 0.2
    assert monitor.worst_seconds >= 0.2
    assert monitor.p50_seconds < 0.1
    assert monitor.p99_seconds <= monitor.worst_seconds
    await until(lambda: all(thread.name != "hive-loop-watch" for thread in threading.enumerate()))


def block_the_loop_until(condition) -> None:
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
