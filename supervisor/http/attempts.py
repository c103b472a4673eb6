"""`/v1/attempts`: runs of connectors."""

from hive.ids import AttemptId, PairId
from supervisor.http.answers import Attempt, DocumentError
from supervisor.http.bodies import AttemptQuery, LimitQuery
from supervisor.http.routing import Answer, Call


async def list_attempts(call: Call) -> Answer:
    """The newest attempts first, of one connector or of all."""
    asked = call.query(AttemptQuery)
    tenant = call.one_tenant()
    pair: PairId | None = None
    if asked.connector is not None:
        pair = (await call.backend.pairs.by_name(tenant, asked.connector)).id
    attempts = await call.backend.attempts.list(tenant, pair=pair, limit=asked.limit)
    return Answer(content=[Attempt.of(attempt) for attempt in attempts])


async def get_attempt(call: Call) -> Answer:
    """One attempt."""
    return Answer(content=Attempt.of(await call.backend.attempts.get(call.one_tenant(), _id(call))))


async def cancel_attempt(call: Call) -> Answer:
    """Stop it; what is indexed already stays."""
    attempt = await call.backend.attempts.cancel(call.one_tenant(), _id(call), client=call.backend.client)
    return Answer(content=Attempt.of(attempt))


async def list_errors(call: Call) -> Answer:
    """The documents that it left out."""
    tenant, id = call.one_tenant(), _id(call)
    await call.backend.attempts.get(tenant, id)  # an attempt that does not exist has no empty list of errors
    errors = await call.backend.attempts.errors(tenant, id, limit=call.query(LimitQuery).limit)
    return Answer(content=[DocumentError.of(error) for error in errors])


def _id(call: Call) -> AttemptId:
    return AttemptId(call.row_id("attempt"))
