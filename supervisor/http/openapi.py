"""The openapi document, made from the route table: what is served and what is described cannot differ."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from supervisor.http.access import TENANT_HEADER
from supervisor.http.routing import Role, Route

_PROBLEM: Mapping[str, Any] = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message"],
            "properties": {
                "code": {"type": "string"},
                "message": {"type": "string"},
                "field": {"type": "string"},
                "remedy": {"type": "string"},
            },
        }
    },
}


def document(routes: tuple[Route, ...], version: str) -> dict[str, Any]:
    """OpenAPI 3.1 for ``routes``."""
    models = {model for route in routes for model in (route.body, route.answers) if model is not None}
    ordered = sorted(models, key=lambda model: model.__name__)
    references, definitions = models_json_schema(
        [(model, "validation") for model in ordered], ref_template="#/components/schemas/{model}"
    )
    schemas = {model: references[model, "validation"] for model in ordered}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "hive",
            "version": version,
            "description": "Background work of a knowledge product.",
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {**definitions.get("$defs", {}), "Problem": _PROBLEM},
        },
    }


def _operation(route: Route, schemas: Mapping[type[BaseModel], Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.summary,
        "parameters": [*_path_parameters(route), *_query_parameters(route), *_tenant_parameter(route)],
        "responses": {
            str(route.status): {"description": "As asked.", **_content(route, schemas)},
            "default": {
                "description": "A problem.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            },
        },
        "x-role": Role.PUBLIC.name.lower() if route.role is None else route.role.name.lower(),
    }
    if route.or_status is not None:
        other = {"description": "As asked, in part.", **_content(route, schemas)}
        operation["responses"][str(route.or_status)] = other
    if route.role is Role.PUBLIC:
        operation["security"] = []
    if route.body is not None:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[route.body]}},
        }
    return operation


def _content(route: Route, schemas: Mapping[type[BaseModel], Any]) -> dict[str, Any]:
    if route.answers is None:
        return {}
    schema: Any = schemas[route.answers]
    if route.many:
        schema = {
            "type": "object",
            "required": ["items"],
            "properties": {"items": {"type": "array", "items": schema}},
        }
    return {"content": {"application/json": {"schema": schema}}}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", route.path)
    ]


def _query_parameters(route: Route) -> list[dict[str, Any]]:
    if route.query is None:
        return []
    schema = route.query.model_json_schema()
    required = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in required, "schema": each}
        for name, each in schema.get("properties", {}).items()
    ]


def _tenant_parameter(route: Route) -> list[dict[str, Any]]:
    if route.reach == "installation":
        return []
    what = "May be left out while there is only one." if route.reach == "tenant" else "Left out: all of them."
    return [
        {
            "name": TENANT_HEADER,
            "in": "header",
            "required": False,
            "description": f"The tenant. {what}",
            "schema": {"type": "string"},
        }
    ]
