"""`/v1/dead`: messages that were given up, from every broker, each with its cause."""

from hive.broker.port import Broker, DeadLetter, JobView
from hive.errors import NotFound
from hive.ids import MessageId, QueueName
from hive.states import JobState
from supervisor.http.answers import Dead, Purged, Replayed
from supervisor.http.bodies import DeadQuery, Ids
from supervisor.http.jobs import message_id
from supervisor.http.routing import Answer, Call

SEARCHED = 10_000
"""How many of the newest dead letters of a stream are looked through for one of them."""


async def list_dead(call: Call) -> Answer:
    """The newest dead letters first."""
    asked = call.query(DeadQuery)
    queue = None if asked.queue is None else QueueName(asked.queue)
    letters: list[DeadLetter] = []
    for broker in _brokers(call):
        letters += await broker.dead_letters(queue=queue, tenant=call.tenant, limit=asked.limit)
    letters.sort(key=lambda letter: letter.died_at, reverse=True)
    return Answer(content=[Dead.of(letter) for letter in letters[: asked.limit]])


async def get_dead(call: Call) -> Answer:
    """One dead letter with its arguments and cause."""
    return Answer(content=Dead.of(await _find(call, message_id(call.request.match_info["id"]))))


async def replay_dead(call: Call) -> Answer:
    """Put dead letters back in line with fresh budgets; says how many were found."""
    ids = await _asked(call)
    count = 0
    for broker in _brokers(call):
        count += await broker.replay(ids)
    return Answer(content=Replayed(replayed=_some(count, ids)))


async def purge_dead(call: Call) -> Answer:
    """Delete dead letters for good; says how many were found."""
    ids = await _asked(call)
    count = 0
    for broker in _brokers(call):
        count += await broker.purge(ids)
    return Answer(content=Purged(purged=_some(count, ids)))


async def _asked(call: Call) -> list[MessageId]:
    """The ids of the body. A caller that sees one tenant only must name dead letters of that tenant."""
    ids = [message_id(text) for text in dict.fromkeys(call.body(Ids).ids)]
    if call.tenant is not None:
        for id in ids:
            await _find(call, id)
    return ids


async def _find(call: Call, id: MessageId) -> DeadLetter:
    job = await call.backend.ledger.find(id)
    if job is not None and job.state is JobState.FAILED and call.tenant in (None, job.tenant):
        return _letter(job)
    for broker in _brokers(call):
        if broker is call.backend.ledger:
            continue
        for letter in await broker.dead_letters(tenant=call.tenant, limit=SEARCHED):
            if letter.id == id:
                return letter
    raise _unknown(id)


def _letter(job: JobView) -> DeadLetter:
    # The schema holds that a failed job has its cause and its end.
    assert job.error is not None
    assert job.finished_at is not None
    return DeadLetter(
        id=job.id,
        queue=job.queue,
        task=job.task,
        tenant=job.tenant,
        args=job.args,
        error=job.error,
        attempts=job.attempt,
        died_at=job.finished_at,
    )


def _brokers(call: Call) -> list[Broker]:
    distinct: dict[int, Broker] = {id(call.backend.ledger): call.backend.ledger}
    for broker in call.backend.routes.values():
        distinct.setdefault(id(broker), broker)
    return list(distinct.values())


def _some(count: int, ids: list[MessageId]) -> int:
    if not count:
        raise _unknown(ids[0])
    return count


def _unknown(id: MessageId) -> NotFound:
    return NotFound(f"no dead letter has the id {id}", remedy="`hive dead list` shows them")
