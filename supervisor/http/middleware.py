"""What stands around every handler: errors become JSON problems, and each request gets a log line."""

import json
import uuid
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Middleware

from hive.clock import Clock
from hive.errors import HiveError
from hive.logger import get_logger
from supervisor.http.problems import Problem, problem_of

log = get_logger(__name__)

Next = Callable[[web.Request], Awaitable[web.StreamResponse]]

HARDENING = {
    "Server": "hive",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


def respond(content: object, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """``content`` as a JSON response."""
    return web.Response(
        body=json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(),
        status=status,
        content_type="application/json",
        charset="utf-8",
        headers=headers,
    )


def failure_boundary() -> Middleware:
    """The API's one failure boundary: whatever a handler raises leaves as a problem, never as a traceback."""

    @web.middleware
    async def boundary(request: web.Request, handler: Next) -> web.StreamResponse:
        try:
            response = await handler(request)
        except web.HTTPException as error:
            response = _respond_problem(_of_aiohttp(error, request), _kept_headers(error))
        except HiveError as error:
            response = _respond_problem(problem_of(error))
        except Exception:
            reference = uuid.uuid4().hex[:12]
            log.exception("http.failed", method=request.method, route=_route_of(request), reference=reference)
            response = _respond_problem(
                Problem(
                    status=500,
                    code="internal",
                    message=f"hive failed to answer; its log says why under {reference}",
                )
            )
        for name, value in HARDENING.items():
            response.headers.setdefault(name, value)
        return response

    return boundary


def request_log(clock: Clock) -> Middleware:
    """One line per request: its route, never its query, body or token. Reads are logged at debug."""

    @web.middleware
    async def logged(request: web.Request, handler: Next) -> web.StreamResponse:
        started = clock.monotonic()
        status = 499  # the caller went away
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            write = log.info if request.method not in ("GET", "HEAD") or status >= 500 else log.debug
            write(
                "http.request",
                method=request.method,
                route=_route_of(request),
                status=status,
                seconds=round(clock.monotonic() - started, 4),
            )

    return logged


def _respond_problem(problem: Problem, headers: dict[str, str] | None = None) -> web.Response:
    extra = dict(headers or {})
    if problem.status == HTTPStatus.UNAUTHORIZED:
        extra["WWW-Authenticate"] = 'Bearer realm="hive"'
    if problem.retry_after_seconds is not None:
        extra["Retry-After"] = str(max(1, round(problem.retry_after_seconds)))
    return respond(problem.content(), status=problem.status, headers=extra)


def _of_aiohttp(error: web.HTTPException, request: web.Request) -> Problem:
    match error.status:
        case 404:
            return Problem(
                status=404,
                code="no_such_route",
                message=f"nothing is served at {request.path[:200]}",
                remedy="/v1/openapi.json lists what is",
            )
        case 405:
            return Problem(
                status=405, code="method_not_allowed", message=f"{request.method} is not served at this path"
            )
        case 413:
            return Problem(status=413, code="too_large", message="the body is longer than the API reads")
        case status:
            return Problem(status=status, code="http", message=error.reason)


def _kept_headers(error: web.HTTPException) -> dict[str, str]:
    return {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}


def _route_of(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "(none)"
