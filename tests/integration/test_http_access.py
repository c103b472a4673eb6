"""Who may do what by HTTP, and what an answer gives away."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import structlog

from hive.store.postgres import Database
from http_api import Api
from supervisor.http.routing import Role, Route
from supervisor.http.table import ROUTES

ROLES = {"viewer": Role.VIEWER, "editor": Role.EDITOR, "admin": Role.ADMIN}
CALLERS = (
    ("nobody", "", None),
    ("stranger", "stranger", None),
    *((role, role, None) for role in ROLES),
    *((f"public's {role}", role, "public") for role in ROLES),
)


def _target(route: Route) -> str:
    return route.path.replace(
        "{id}", "7" if "connectors" in route.path or "attempts" in route.path else str(uuid4())
    )


async def test_every_route_lets_in_exactly_whom_it_declares(api: Api) -> None:
    tokens = {
        name: ""
        if name == "nobody"
        else "unknown-token"
        if name == "stranger"
        else await api.issue(role, tenant)
        for name, role, tenant in CALLERS
    }
    for route in ROUTES:
        for name, role, tenant in CALLERS:
            body = {} if route.body is None else {"json": {}}
            status, content = await api.call(route.method, _target(route), token=tokens[name], **body)
            where = f"{route.method} {route.path} by {name}: {status} {content}"
            if route.role is Role.PUBLIC:
                assert status == 200, where
            elif name in ("nobody", "stranger"):
                assert status == 401, where
                assert content["error"]["code"] == "unauthenticated", where
            elif ROLES[role] < (route.role or Role.ADMIN) or (tenant and route.reach == "installation"):
                assert status == 403, where
                assert content["error"]["code"] == "forbidden", where
            else:
                assert status in (200, 202, 400, 404), where


async def test_a_caller_without_a_token_learns_nothing_of_its_body(api: Api) -> None:
    status, content = await api.call(
        "POST", "/v1/tenants", token="", data=b"{", headers={"Content-Type": "text/plain"}
    )
    assert status == 401
    assert "JSON" not in content["error"]["message"]


async def test_a_revoked_token_is_refused(
    api: Api, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.http.access.KEPT_SECONDS", 0.0)
    token = await api.issue("viewer")
    await api.get("/v1/tenants", token=token)
    async with database.acquire() as connection:
        await connection.execute("update hive.api_token set revoked_at = now()")
    status, _ = await api.call("GET", "/v1/tenants", token=token)
    assert status == 401


async def test_the_tenant_may_be_left_out_only_while_there_is_one(api: Api) -> None:
    assert (await api.get("/v1/connectors")) == {"items": []}
    await api.post("/v1/tenants", {"id": "acme"})
    status, content = await api.call("GET", "/v1/connectors")
    assert (status, content["error"]["code"]) == (400, "tenant_missing")
    assert await api.get("/v1/connectors", tenant="acme") == {"items": []}
    assert await api.get("/v1/connectors?tenant=acme") == {"items": []}
    status, content = await api.call("GET", "/v1/connectors", tenant="initech")
    assert (status, content["error"]["code"]) == (404, "unknown_tenant")
    assert "initech" in content["error"]["message"]
    assert (await api.call("GET", "/v1/connectors", tenant="../x"))[0] == 400
    assert (await api.call("GET", "/v1/connectors?tenant=public", tenant="acme"))[0] == 403


async def test_a_tenants_token_reaches_nobody_else(api: Api, docs: Path) -> None:
    await api.post("/v1/tenants", {"id": "acme"})
    body = {"kind": "files", "name": "docs", "config": {"path": str(docs)}, "add_root": True}
    await api.post("/v1/connectors", body, tenant="public")
    job = (await api.post("/v1/enqueue", {"task": "note", "args": {"text": "a"}}, tenant="public"))["id"]
    token = await api.issue("admin", "acme")
    assert await api.get("/v1/connectors", token=token) == {"items": []}
    assert (await api.call("GET", "/v1/connectors", token=token, tenant="public"))[0] == 403
    assert await api.get("/v1/jobs", token=token) == {"items": []}
    assert (await api.call("GET", f"/v1/jobs/{job}", token=token))[0] == 404
    assert (await api.call("POST", f"/v1/jobs/{job}/cancel", token=token))[0] == 404
    assert (await api.call("POST", "/v1/enqueue", token=token, json={"task": "sweep_floor"}))[0] == 403
    own = (await api.post("/v1/enqueue", {"task": "note", "args": {"text": "b"}}, token=token))["id"]
    assert (await api.get(f"/v1/jobs/{own}", token=token))["tenant"] == "acme"


async def test_only_the_hosts_own_token_adds_roots(api: Api, docs: Path) -> None:
    body: dict[str, Any] = {"kind": "files", "name": "docs", "config": {"path": str(docs)}}
    admin = await api.issue("admin")
    assert (await api.call("POST", "/v1/connectors", token=admin, json={**body, "add_root": True}))[0] == 403
    status, content = await api.call("POST", "/v1/connectors", token=admin, json=body)
    assert (status, content["error"]["field"]) == (400, "config.path")
    api.backend.roots.add(docs)
    assert (await api.call("POST", "/v1/connectors", token=admin, json=body))[0] == 201


async def test_answers_carry_no_invitation_to_browsers(api: Api) -> None:
    async with api.client.get(
        f"{api.base}/livez", headers={"Origin": "https://evil.example", "Host": "evil"}
    ) as answer:
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cache-Control"] == "no-store"
        assert not any(name.lower().startswith("access-control") for name in answer.headers)
        assert "Set-Cookie" not in answer.headers
    async with api.client.get(f"{api.base}/v1/tenants") as answer:
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_nothing_secret_is_logged(api: Api, docs: Path) -> None:
    with structlog.testing.capture_logs() as lines:
        body = {"kind": "files", "name": "a", "config": {"path": str(docs)}, "credential": {"p": "sesame"}}
        await api.post("/v1/connectors", {**body, "add_root": True})
        await api.get("/v1/search?q=barley")
    assert any(line["event"] == "http.request" for line in lines)
    for word in ("sesame", "barley", api.token):
        assert word not in str(lines)
