"""The route table: complete, guarded, and described as it is."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from hive.errors import ConfigurationError
from supervisor.http.openapi import document
from supervisor.http.routing import Role, verify
from supervisor.http.table import ROUTES

PUBLIC = {"/livez", "/readyz", "/metrics"}


def test_only_health_and_metrics_are_public() -> None:
    assert {route.path for route in ROUTES if route.role is Role.PUBLIC} == PUBLIC


def test_whatever_writes_needs_more_than_a_viewer() -> None:
    for route in ROUTES:
        if route.method != "GET":
            assert route.role in (Role.EDITOR, Role.ADMIN), route.path


def test_a_route_without_a_role_does_not_start() -> None:
    verify(ROUTES)
    with pytest.raises(ConfigurationError, match="neither a role nor public"):
        verify((*ROUTES, replace(ROUTES[0], path="/v1/forgotten", role=None)))


def test_a_public_route_must_not_reach_tenants() -> None:
    with pytest.raises(ConfigurationError, match="public"):
        verify((replace(ROUTES[0], reach="tenant"),))


def test_a_route_twice_does_not_start() -> None:
    with pytest.raises(ConfigurationError, match="twice"):
        verify((*ROUTES, ROUTES[0]))


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    return json.loads(json.dumps(document(ROUTES, "1.2.3")))


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            if name == "$ref":
                yield each
            else:
                yield from _references(each)
    elif isinstance(value, list):
        for each in value:
            yield from _references(each)


def test_every_route_is_described(described: dict[str, Any]) -> None:
    assert described["openapi"] == "3.1.0"
    served = {(route.path, route.method.lower()) for route in ROUTES}
    assert {(path, method) for path, each in described["paths"].items() for method in each} == served


def test_every_reference_leads_somewhere(described: dict[str, Any]) -> None:
    references = set(_references(described))
    assert references
    for reference in references:
        place: Any = described
        for step in reference.removeprefix("#/").split("/"):
            place = place[step]
        assert isinstance(place, dict)


def test_operations_are_complete(described: dict[str, Any]) -> None:
    names: list[str] = []
    for path, operations in described["paths"].items():
        for operation in operations.values():
            names.append(operation["operationId"])
            declared = {each["name"] for each in operation["parameters"] if each["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
            assert any(status.startswith("2") for status in operation["responses"])
            assert (operation.get("security") == []) == (path in PUBLIC)
    assert len(names) == len(set(names))
