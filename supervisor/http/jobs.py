"""`/v1/jobs`, `/v1/queues`, `/v1/enqueue`: what waits, runs and has run.

A caller who is bound to one tenant, or asks for one, sees that tenant's jobs alone; another's does not exist
for it.
"""

import asyncio
from uuid import UUID

from hive.broker.port import JobView
from hive.errors import NotFound
from hive.ids import MessageId, QueueName
from hive.states import TERMINAL, JobState
from supervisor.http.answers import Cancelled, Enqueued, Job, Queue
from supervisor.http.bodies import Enqueue, JobQuery
from supervisor.http.problems import Forbidden
from supervisor.http.routing import Answer, Call


async def list_queues(call: Call) -> Answer:
    """Every queue with its depth, its carrier and its pool, in the order of the pools."""
    backend = call.backend
    rows: list[tuple[QueueName, str, int]] = [
        (QueueName(queue), name, pool.slots)
        for name, pool in backend.settings.pools.items()
        for queue in (*pool.ledger, *pool.stream)
        if QueueName(queue) in backend.routes
    ]
    depths = await asyncio.gather(*(backend.routes[queue].depth(queue) for queue, _, _ in rows))
    return Answer(
        content=[
            Queue.of(
                depth,
                broker=backend.routes[queue].kind,
                pool=pool,
                slots=live.slots.total if (live := backend.pools.get(pool)) is not None else slots,
            )
            for depth, (queue, pool, slots) in zip(depths, rows, strict=True)
        ]
    )


async def list_jobs(call: Call) -> Answer:
    """Durable jobs, newest first."""
    asked = call.query(JobQuery)
    jobs = await call.backend.ledger.jobs(
        queue=None if asked.queue is None else QueueName(asked.queue),
        tenant=call.tenant,
        state=None if asked.state is None else JobState(asked.state),
        task=asked.task,
        limit=asked.limit,
    )
    return Answer(content=[Job.of(job) for job in jobs])


async def get_job(call: Call) -> Answer:
    """One job."""
    return Answer(content=Job.of(await _find(call)))


async def cancel_job(call: Call) -> Answer:
    """Cancel it: a waiting one at once, a running one as soon as its handler listens."""
    job = await _find(call)
    if job.state in TERMINAL:
        return Answer(content=Cancelled(cancelled=False))
    touched = await call.backend.ledger.cancel([job.id], tenant=job.tenant)
    return Answer(content=Cancelled(cancelled=touched > 0))


async def enqueue(call: Call) -> Answer:
    """Enqueue one message for a registered task. System tasks need a token for every tenant."""
    asked = call.body(Enqueue)
    client = call.backend.client
    task = client.registry.get(asked.task)
    tenant = call.tenant
    if task.options.scope == "system":
        if call.identity.tenant is not None:
            raise Forbidden(f"task {task.name} concerns the whole installation; the token is one tenant's")
    elif tenant is None:
        tenant = await call.backend.tenants.resolve(None)
    id = await client.enqueue(
        task, asked.args, tenant=tenant, key=asked.key, delay_seconds=asked.delay_seconds
    )
    return Answer(content=Enqueued(id=str(id)), status=202)


def message_id(text: str) -> MessageId:
    """``text`` as a message's id; raises NotFound, since no message has any other."""
    try:
        return MessageId(UUID(text))
    except ValueError:
        raise NotFound(f"no job {text[:60]!r}", remedy="a job's id is a UUID") from None


async def _find(call: Call) -> JobView:
    id = message_id(call.request.match_info["id"])
    job = await call.backend.ledger.find(id)
    if job is None or (call.tenant is not None and job.tenant != call.tenant):
        raise NotFound(f"no job has the id {id}", remedy="ended jobs are kept for a while only")
    return job
