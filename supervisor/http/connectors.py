"""`/v1/connectors`: sources with their credentials."""

import asyncio

from hive.errors import Conflict, InvalidInput, Transient
from hive.ids import PairId
from hive.logger import get_logger
from supervisor.http.answers import AttemptAsked, Connector, Removed
from supervisor.http.bodies import ConnectorQuery, NewConnector
from supervisor.http.problems import Forbidden
from supervisor.http.roots import FIELD
from supervisor.http.routing import Answer, Call

log = get_logger(__name__)

REMOVAL_SECONDS = 20.0


async def list_connectors(call: Call) -> Answer:
    """All connectors of the tenant, or the one of that name."""
    wanted = call.query(ConnectorQuery).name
    pairs = await call.backend.pairs.list(call.one_tenant())
    return Answer(content=[Connector.of(pair) for pair in pairs if wanted is None or pair.name == wanted])


async def add_connector(call: Call) -> Answer:
    """Add a connector and start its first run. A folder is checked against the roots, its links resolved."""
    asked = call.body(NewConnector)
    config = dict(asked.config)
    if asked.kind == "files":
        path = config.get("path")
        if not isinstance(path, str):
            raise InvalidInput(FIELD, "must be the folder's path")
        if asked.add_root:
            if not call.identity.local:
                raise Forbidden(
                    "only the token of the state folder may add folders that hive reads",
                    remedy="name them in connectors.files.roots",
                )
            config["path"] = str(call.backend.roots.add(path))
        else:
            config["path"] = str(call.backend.roots.check(path))
    elif asked.add_root:
        raise InvalidInput("add_root", "is for connectors of kind files")
    pair = await call.backend.pairs.add(
        call.one_tenant(),
        kind=asked.kind,
        name=asked.name,
        config=config,
        credential=asked.credential,
        refresh_seconds=asked.refresh_seconds,
    )
    # At once, rather than with the next check: whoever adds a connector is watching.
    try:
        await call.backend.pairs.request_run(call.one_tenant(), pair.id, client=call.backend.client)
    except (Conflict, Transient) as error:
        log.info("connector.starts_later", pair=pair.id, cause=error.code)
    return Answer(content=Connector.of(await call.backend.pairs.get(call.one_tenant(), pair.id)), status=201)


async def get_connector(call: Call) -> Answer:
    """One connector."""
    return Answer(content=Connector.of(await call.backend.pairs.get(call.one_tenant(), _id(call))))


async def run_connector(call: Call) -> Answer:
    """Start a run now; the one under way answers for it if there is one."""
    attempt = await call.backend.pairs.request_run(call.one_tenant(), _id(call), client=call.backend.client)
    return Answer(content=AttemptAsked(attempt=attempt), status=202)


async def pause_connector(call: Call) -> Answer:
    """Start no further runs."""
    return Answer(content=Connector.of(await call.backend.pairs.pause(call.one_tenant(), _id(call))))


async def resume_connector(call: Call) -> Answer:
    """Let it run again."""
    return Answer(content=Connector.of(await call.backend.pairs.resume(call.one_tenant(), _id(call))))


async def remove_connector(call: Call) -> Answer:
    """Remove it with what only it brought. What is not done in time goes on with the next check."""
    id = _id(call)
    try:
        async with asyncio.timeout(REMOVAL_SECONDS):
            gone = await call.backend.pairs.remove(call.one_tenant(), id, client=call.backend.client)
    except TimeoutError:
        return Answer(content=Removed(id=id, removed=False, documents=None), status=202)
    return Answer(content=Removed(id=id, removed=True, documents=gone))


def _id(call: Call) -> PairId:
    return PairId(call.row_id("connector"))
