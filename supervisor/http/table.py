"""Every route hive serves, with who may call it and what it reaches. What is not here is not served."""

from collections.abc import Sequence
from importlib.metadata import version

from supervisor.http import (
    answers,
    attempts,
    bodies,
    connectors,
    dead,
    jobs,
    openapi,
    search,
    system,
    tenants,
)
from supervisor.http.routing import Answer, Call, Role, Route

PUBLIC, VIEWER, EDITOR, ADMIN = Role.PUBLIC, Role.VIEWER, Role.EDITOR, Role.ADMIN


async def describe(call: Call) -> Answer:
    """This table as an openapi document."""
    del call
    return Answer(content=openapi.document(ROUTES, version("hive-supervisor")))


def _probes() -> Sequence[Route]:
    return (
        Route(
            method="GET",
            path="/livez",
            handler=system.livez,
            role=PUBLIC,
            reach="installation",
            summary="Whether hive makes progress",
            answers=answers.Health,
            or_status=503,
        ),
        Route(
            method="GET",
            path="/readyz",
            handler=system.readyz,
            role=PUBLIC,
            reach="installation",
            summary="Whether hive consumes its queues; 503 with the reasons if not",
            answers=answers.Health,
            or_status=503,
        ),
        Route(
            method="GET",
            path="/metrics",
            handler=system.metrics,
            role=PUBLIC,
            reach="installation",
            summary="Figures for Prometheus",
        ),
        Route(
            method="GET",
            path="/v1/openapi.json",
            handler=describe,
            role=VIEWER,
            reach="every_tenant",
            summary="This document",
        ),
    )


def _tenants() -> Sequence[Route]:
    return (
        Route(
            method="GET",
            path="/v1/tenants",
            handler=tenants.list_tenants,
            role=VIEWER,
            reach="installation",
            summary="List the tenants",
            answers=answers.Tenant,
            many=True,
        ),
        Route(
            method="POST",
            path="/v1/tenants",
            handler=tenants.create_tenant,
            role=ADMIN,
            reach="installation",
            summary="Create a tenant",
            body=bodies.NewTenant,
            answers=answers.Tenant,
            status=201,
            deadline_seconds=60,
        ),
    )


def _connectors() -> Sequence[Route]:
    return (
        Route(
            method="GET",
            path="/v1/connectors",
            handler=connectors.list_connectors,
            role=VIEWER,
            reach="tenant",
            summary="List the connectors",
            query=bodies.ConnectorQuery,
            answers=answers.Connector,
            many=True,
        ),
        Route(
            method="POST",
            path="/v1/connectors",
            handler=connectors.add_connector,
            role=EDITOR,
            reach="tenant",
            summary="Add a connector and start its first run",
            body=bodies.NewConnector,
            answers=answers.Connector,
            status=201,
        ),
        Route(
            method="GET",
            path="/v1/connectors/{id}",
            handler=connectors.get_connector,
            role=VIEWER,
            reach="tenant",
            summary="One connector",
            answers=answers.Connector,
        ),
        Route(
            method="DELETE",
            path="/v1/connectors/{id}",
            handler=connectors.remove_connector,
            role=EDITOR,
            reach="tenant",
            summary="Remove a connector with what only it brought",
            answers=answers.Removed,
            or_status=202,
            deadline_seconds=60,
        ),
        Route(
            method="POST",
            path="/v1/connectors/{id}/run",
            handler=connectors.run_connector,
            role=EDITOR,
            reach="tenant",
            summary="Start a run now",
            answers=answers.AttemptAsked,
            status=202,
        ),
        Route(
            method="POST",
            path="/v1/connectors/{id}/pause",
            handler=connectors.pause_connector,
            role=EDITOR,
            reach="tenant",
            summary="Start no further runs",
            answers=answers.Connector,
        ),
        Route(
            method="POST",
            path="/v1/connectors/{id}/resume",
            handler=connectors.resume_connector,
            role=EDITOR,
            reach="tenant",
            summary="Let it run again",
            answers=answers.Connector,
        ),
    )


def _attempts() -> Sequence[Route]:
    return (
        Route(
            method="GET",
            path="/v1/attempts",
            handler=attempts.list_attempts,
            role=VIEWER,
            reach="tenant",
            summary="List attempts, newest first",
            query=bodies.AttemptQuery,
            answers=answers.Attempt,
            many=True,
        ),
        Route(
            method="GET",
            path="/v1/attempts/{id}",
            handler=attempts.get_attempt,
            role=VIEWER,
            reach="tenant",
            summary="One attempt",
            answers=answers.Attempt,
        ),
        Route(
            method="POST",
            path="/v1/attempts/{id}/cancel",
            handler=attempts.cancel_attempt,
            role=EDITOR,
            reach="tenant",
            summary="Stop an attempt",
            answers=answers.Attempt,
        ),
        Route(
            method="GET",
            path="/v1/attempts/{id}/errors",
            handler=attempts.list_errors,
            role=VIEWER,
            reach="tenant",
            summary="The documents it left out",
            query=bodies.LimitQuery,
            answers=answers.DocumentError,
            many=True,
        ),
        Route(
            method="GET",
            path="/v1/search",
            handler=search.search,
            role=VIEWER,
            reach="tenant",
            summary="Find documents by meaning and by words",
            query=bodies.SearchQuery,
            answers=answers.Results,
        ),
    )


def _jobs() -> Sequence[Route]:
    return (
        Route(
            method="GET",
            path="/v1/queues",
            handler=jobs.list_queues,
            role=VIEWER,
            reach="installation",
            summary="Every queue with its depth",
            answers=answers.Queue,
            many=True,
        ),
        Route(
            method="GET",
            path="/v1/jobs",
            handler=jobs.list_jobs,
            role=VIEWER,
            reach="every_tenant",
            summary="List durable jobs, newest first",
            query=bodies.JobQuery,
            answers=answers.Job,
            many=True,
        ),
        Route(
            method="GET",
            path="/v1/jobs/{id}",
            handler=jobs.get_job,
            role=VIEWER,
            reach="every_tenant",
            summary="One job",
            answers=answers.Job,
        ),
        Route(
            method="POST",
            path="/v1/jobs/{id}/cancel",
            handler=jobs.cancel_job,
            role=EDITOR,
            reach="every_tenant",
            summary="Cancel a job",
            answers=answers.Cancelled,
        ),
        Route(
            method="POST",
            path="/v1/enqueue",
            handler=jobs.enqueue,
            role=EDITOR,
            reach="every_tenant",
            summary="Enqueue one message",
            body=bodies.Enqueue,
            answers=answers.Enqueued,
            status=202,
        ),
        Route(
            method="GET",
            path="/v1/dead",
            handler=dead.list_dead,
            role=VIEWER,
            reach="every_tenant",
            summary="List dead letters, newest first",
            query=bodies.DeadQuery,
            answers=answers.Dead,
            many=True,
        ),
        Route(
            method="GET",
            path="/v1/dead/{id}",
            handler=dead.get_dead,
            role=VIEWER,
            reach="every_tenant",
            summary="One dead letter",
            answers=answers.Dead,
        ),
        Route(
            method="POST",
            path="/v1/dead/replay",
            handler=dead.replay_dead,
            role=EDITOR,
            reach="every_tenant",
            summary="Put dead letters back in line",
            body=bodies.Ids,
            answers=answers.Replayed,
        ),
        Route(
            method="POST",
            path="/v1/dead/purge",
            handler=dead.purge_dead,
            role=ADMIN,
            reach="every_tenant",
            summary="Delete dead letters for good",
            body=bodies.Ids,
            answers=answers.Purged,
        ),
    )


def _process() -> Sequence[Route]:
    return (
        Route(
            method="GET",
            path="/v1/pools",
            handler=system.list_pools,
            role=VIEWER,
            reach="installation",
            summary="Every pool with what runs in it",
            answers=answers.Pool,
            many=True,
        ),
        Route(
            method="GET",
            path="/v1/services",
            handler=system.list_services,
            role=VIEWER,
            reach="installation",
            summary="Every supervised service",
            answers=answers.Service,
            many=True,
        ),
        Route(
            method="POST",
            path="/v1/drain",
            handler=system.drain,
            role=ADMIN,
            reach="installation",
            summary="Finish what can be, hand back the rest, end",
            answers=answers.Draining,
            status=202,
        ),
    )


ROUTES: tuple[Route, ...] = (*_probes(), *_tenants(), *_connectors(), *_attempts(), *_jobs(), *_process())
