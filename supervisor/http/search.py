"""`/v1/search`."""

from supervisor.http.answers import Result, Results
from supervisor.http.bodies import SearchQuery
from supervisor.http.routing import Answer, Call


async def search(call: Call) -> Answer:
    """Documents that fit, the best first."""
    asked = call.query(SearchQuery)
    hits = await call.backend.search.run(call.one_tenant(), asked.q, asked.limit)
    return Answer(content=Results(items=[Result.of(hit) for hit in hits], degraded=hits.degraded))
