"""The aiohttp application: the route table, behind access, deadlines and the failure boundary."""

import asyncio
from collections.abc import Sequence
from typing import cast

from aiohttp import web
from pydantic import BaseModel

from hive.clock import Clock, SystemClock
from hive.tenancy import acting_for
from supervisor.http.access import Access
from supervisor.http.backend import Backend
from supervisor.http.middleware import Next, failure_boundary, request_log, respond
from supervisor.http.parsing import MAX_BODY_BYTES, read_body, read_query, refuse_query
from supervisor.http.problems import DeadlinePassed
from supervisor.http.routing import Answer, Call, Route, verify
from supervisor.http.table import ROUTES


def build(
    backend: Backend,
    *,
    token: str,
    clock: Clock | None = None,
    routes: tuple[Route, ...] = ROUTES,
) -> web.Application:
    """The application for ``backend``. ``token``: the host's own, see ``supervisor.http.local_token``.

    Raises ConfigurationError when a route declares neither a role nor public.
    """
    verify(routes)
    clock = clock or SystemClock()
    access = Access(
        token=token,
        database=backend.database,
        tenants=backend.tenants,
        clock=clock,
    )
    application = web.Application(
        middlewares=[request_log(clock), failure_boundary()], client_max_size=MAX_BODY_BYTES
    )
    for route in routes:
        serve = _serving(route, access, backend)
        if route.method == "GET":
            application.router.add_get(route.path, serve)
        else:
            application.router.add_route(route.method, route.path, serve)
    return application


def _serving(route: Route, access: Access, backend: Backend) -> Next:
    async def serve(request: web.Request) -> web.StreamResponse:
        deadline = asyncio.timeout(route.deadline_seconds)
        try:
            async with deadline:
                call = await _admitted(request, route, access, backend)
                with acting_for(call.tenant):
                    answer = await route.handler(call)
        except TimeoutError as error:
            if not deadline.expired():
                raise
            raise DeadlinePassed(
                f"no answer within {route.deadline_seconds:g} s; what was asked for may still happen"
            ) from error
        return _respond(answer)

    return serve


async def _admitted(request: web.Request, route: Route, access: Access, backend: Backend) -> Call:
    # Access comes first: a caller without a token learns nothing, not even what is wrong with its body.
    identity, tenant = await access.admit(request, route)
    query: BaseModel | None = None
    if route.query is not None:
        query = read_query(request, route.query)
    else:
        refuse_query(request)
    return Call(
        request=request,
        backend=backend,
        identity=identity,
        tenant=tenant,
        parsed_query=query,
        parsed_body=None if route.body is None else await read_body(request, route.body),
    )


def _respond(answer: Answer) -> web.Response:
    headers = dict(answer.headers)
    if answer.raw is not None:
        # aiohttp wants the charset apart from the type; Prometheus' own type carries a version as well.
        headers["Content-Type"] = answer.content_type
        return web.Response(body=answer.raw, status=answer.status, headers=headers)
    content = answer.content
    if isinstance(content, BaseModel):
        content = content.model_dump(mode="json")
    elif isinstance(content, list):
        rows = cast(Sequence[BaseModel], content)
        content = {"items": [row.model_dump(mode="json") for row in rows]}
    return respond(content, status=answer.status, headers=headers)
