"""The process as a whole: health, metrics, pools, services, drain."""

from supervisor.http.answers import Draining, Health, Pool, RunningJob, Service
from supervisor.http.backend import Verdict
from supervisor.http.routing import Answer, Call


async def livez(call: Call) -> Answer:
    """200 while hive makes progress, else 503. Never fails because a store is away."""
    return _verdict(call.backend.health.live())


async def readyz(call: Call) -> Answer:
    """200 while hive consumes its queues, else 503 with the reasons."""
    return _verdict(call.backend.health.ready())


async def metrics(call: Call) -> Answer:
    """Prometheus exposition."""
    scrape = call.backend.metrics
    return Answer(raw=scrape.render(), content_type=scrape.content_type)


async def list_pools(call: Call) -> Answer:
    """Every pool of this process, with what runs in it."""
    settings = call.backend.settings.pools
    return Answer(
        content=[
            Pool(
                pool=name,
                slots=pool.slots.total,
                busy=pool.slots.in_use,
                lost=pool.slots.written_off,
                ready=pool.ready,
                queues=[*settings[name].ledger, *settings[name].stream] if name in settings else [],
                running=[RunningJob.of(job) for job in pool.running()],
            )
            for name, pool in call.backend.pools.items()
        ]
    )


async def list_services(call: Call) -> Answer:
    """Every supervised service."""
    return Answer(
        content=[
            Service(
                service=view.name,
                state=view.state,
                critical=view.critical,
                restarts=view.restarts,
                since_seconds=round(view.since_seconds, 3),
                pulse_age_seconds=None
                if view.pulse_age_seconds is None
                else round(view.pulse_age_seconds, 3),
                stale=view.stale,
                cause=view.cause,
            )
            for view in call.backend.services()
        ]
    )


async def drain(call: Call) -> Answer:
    """Begin what SIGTERM begins: finish what can be, hand back the rest, end."""
    call.backend.drain()
    return Answer(content=Draining(draining=True), status=202)


def _verdict(verdict: Verdict) -> Answer:
    return Answer(
        content=Health(ok=verdict.ok, reasons=list(verdict.reasons)), status=200 if verdict.ok else 503
    )
