"""The HTTP API over a real database: who may do what, what it answers, and how it refuses."""

import asyncio
from collections.abc import AsyncGenerator
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import uuid4

from hive.broker.port import Settlement
from hive.errors import Conflict, LeaseLost, QueueFull, StoreDown
from hive.ids import QueueName, new_process_id
from hive.outcomes import ErrorKind, ErrorRecord, Failed
from hive.store.postgres import Database
from http_api import Api, recent, serving
from probes.health import Verdict
from supervisor.http.routing import Answer, Call, Handler, Role, Route
from supervisor.http.table import ROUTES


async def test_probes_and_metrics(api: Api) -> None:
    assert await api.get("/livez", token="") == {"ok": True, "reasons": []}
    api.health.verdict = Verdict(ok=False, reasons=("redis is away",))
    status, content = await api.call("GET", "/readyz", token="")
    assert (status, content) == (503, {"ok": False, "reasons": ["redis is away"]})
    status, text = await api.call("GET", "/metrics", token="")
    assert (status, text) == (200, "hive_up 1\n")
    status, _ = await api.call("HEAD", "/livez", token="")
    assert status == 200


async def test_the_openapi_document_is_served(api: Api) -> None:
    described = await api.get("/v1/openapi.json")
    assert set(described["paths"]) == {route.path for route in ROUTES}


async def test_tenants(api: Api) -> None:
    made = await api.post("/v1/tenants", {"id": "acme"})
    assert made["id"] == "acme"
    assert recent(made["created_at"])
    assert [row["id"] for row in (await api.get("/v1/tenants"))["items"]] == ["acme", "public"]
    assert (await api.call("POST", "/v1/tenants", json={"id": "acme"}))[0] == 409
    for bad in ("Acme", "a-b", "a;drop schema hive", "", "x" * 60):
        status, content = await api.call("POST", "/v1/tenants", json={"id": bad})
        assert (status, content["error"]["field"]) == (400, "tenant")


async def test_a_connectors_life(api: Api, docs: Path) -> None:
    body = {
        "kind": "files",
        "name": "docs",
        "config": {"path": str(docs), "include": ["**/*.md"]},
        "credential": {"password": "sesame"},
        "refresh_seconds": 0,
        "add_root": True,
    }
    status, made = await api.call("POST", "/v1/connectors", json=body)
    assert status == 201
    assert (made["name"], made["state"], made["has_credential"]) == ("docs", "active", True)
    assert "sesame" not in str(made)
    at = f"/v1/connectors/{made['id']}"
    assert (await api.call("POST", "/v1/connectors", json=body))[0] == 409
    assert (await api.get("/v1/connectors?name=docs"))["items"] == [await api.get(at)]
    assert (await api.get("/v1/connectors?name=other"))["items"] == []
    assert (await api.post(f"{at}/pause"))["state"] == "paused"
    assert (await api.call("POST", f"{at}/run"))[0] == 409
    assert (await api.post(f"{at}/resume"))["state"] == "active"
    attempt = (await api.post(f"{at}/run"))["attempt"]
    assert attempt == made["last_attempt"]  # adding it started its first run
    assert (await api.post(f"{at}/run"))["attempt"] == attempt
    assert (await api.get(at))["last_attempt"] == attempt
    row = (await api.get("/v1/attempts"))["items"][0]
    assert {key: row[key] for key in ("id", "connector", "status", "error", "documents_new")} == {
        "id": attempt,
        "connector": "docs",
        "status": "not_started",
        "error": None,
        "documents_new": 0,
    }
    assert (await api.get("/v1/attempts?connector=docs"))["items"] == [row]
    assert (await api.call("GET", "/v1/attempts?connector=other"))[0] == 404
    assert (await api.get(f"/v1/attempts/{attempt}/errors")) == {"items": []}
    assert (await api.post(f"/v1/attempts/{attempt}/cancel"))["status"] == "cancelled"
    assert (await api.call("DELETE", at))[1] == {"id": made["id"], "removed": True, "documents": 0}
    assert (await api.call("GET", at))[0] == 404


# Lists rather than parameters: a database for each case would take most of the time.
BAD_CONNECTORS: list[tuple[dict[str, Any], str]] = [
    ({"kind": "ftp", "add_root": False}, "kind"),
    ({"config": {}}, "config.path"),
    ({"config": {"path": "relative"}}, "config.path"),
    ({"config": {"path": "/no/such/folder"}}, "config.path"),
    ({"config": {"path": "STATE"}}, "config.path"),
    ({"config": {"path": "DOCS", "includ": []}}, "config.includ"),
    ({"config": {"path": "DOCS", "include": ["../x"]}}, "config.include.0"),
    ({"name": ""}, "name"),
    ({"colour": "red"}, "colour"),
    ({"kind": "web", "config": {"start": "ftp://example.org/"}, "add_root": False}, "config.start"),
    ({"kind": "web", "config": {"start": "http://localhost/"}, "add_root": False}, "config.start"),
    ({"kind": "web", "config": {"start": "http://example.org/"}}, "add_root"),
]


async def test_a_bad_connector_is_refused_by_its_field(api: Api, docs: Path, state_dir: Path) -> None:
    for change, field in BAD_CONNECTORS:
        body: dict[str, Any] = {"kind": "files", "name": "docs", "config": {"path": str(docs)}}
        body.update({"add_root": True, **change})
        if isinstance(body["config"].get("path"), str):
            path = body["config"]["path"].replace("STATE", str(state_dir)).replace("DOCS", str(docs))
            body["config"] = {**body["config"], "path": path}
        status, content = await api.call("POST", "/v1/connectors", json=body)
        assert status == 400, (change, content)
        assert content["error"]["field"].startswith(field), (change, content)
    assert await api.get("/v1/connectors") == {"items": []}


async def test_jobs(api: Api) -> None:
    first = (await api.post("/v1/enqueue", {"task": "note", "args": {"text": "a"}, "key": "k"}))["id"]
    again = (await api.post("/v1/enqueue", {"task": "note", "args": {"text": "a"}, "key": "k"}))["id"]
    assert again == first
    later = (await api.post("/v1/enqueue", {"task": "note", "args": {"text": "b"}, "delay_seconds": 600}))[
        "id"
    ]
    system = (await api.post("/v1/enqueue", {"task": "sweep_floor"}))["id"]
    rows = (await api.get("/v1/jobs"))["items"]
    assert {row["id"] for row in rows} == {first, later, system}
    assert {row["id"]: row["state"] for row in rows}[later] == "scheduled"
    assert {row["id"]: row["tenant"] for row in rows} == {first: "public", later: "public", system: None}
    assert [row["id"] for row in (await api.get("/v1/jobs?state=scheduled"))["items"]] == [later]
    assert len((await api.get("/v1/jobs?limit=1"))["items"]) == 1
    assert (await api.get("/v1/jobs?queue=export"))["items"] == []
    shown = await api.get(f"/v1/jobs/{first}")
    assert shown["args"] == {"text": "a"}
    assert recent(shown["enqueued_at"])
    assert await api.post(f"/v1/jobs/{first}/cancel") == {"cancelled": True}
    assert await api.post(f"/v1/jobs/{first}/cancel") == {"cancelled": False}
    assert (await api.get(f"/v1/jobs/{first}"))["state"] == "cancelled"
    for id in (str(uuid4()), "7", "x' or 1=1"):
        assert (await api.call("GET", f"/v1/jobs/{id}"))[0] == 404


BAD_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"task": "absent"}, "task"),
    ({"task": "note"}, "arguments of note"),
    ({"task": "note", "args": {"text": "a", "more": 1}}, "arguments of note"),
    ({"task": "note", "args": {"text": "x" * 70_000}}, "arguments of note"),
    ({"task": "note", "args": {"text": "a"}, "delay_seconds": -1}, "delay_seconds"),
    ({"task": "note", "args": ["a"]}, "args"),
]


async def test_a_bad_message_is_refused(api: Api) -> None:
    for body, field in BAD_MESSAGES:
        status, content = await api.call("POST", "/v1/enqueue", json=body)
        assert (status, content["error"]["field"]) == (400, field), body
    assert await api.get("/v1/jobs") == {"items": []}


async def test_queues(api: Api) -> None:
    await api.post("/v1/enqueue", {"task": "note", "args": {"text": "a"}})
    rows = {row["queue"]: row for row in (await api.get("/v1/queues"))["items"]}
    assert set(rows) == set(api.backend.routes)
    scheduled = rows["scheduled_tasks"]
    assert (scheduled["broker"], scheduled["pool"], scheduled["slots"]) == ("ledger", "scheduled", 4)
    assert (scheduled["waiting"], scheduled["running"], scheduled["more"]) == (1, 0, False)
    assert rows["coordination"]["waiting"] == 0


async def _die(api: Api, text: str, tenant: str = "public") -> str:
    """A job that was given up; returns its id."""
    id = (await api.post("/v1/enqueue", {"task": "note", "args": {"text": text}}, tenant=tenant))["id"]
    deliveries = await api.backend.ledger.claim(QueueName("scheduled_tasks"), new_process_id(), 10)
    error = ErrorRecord(kind=ErrorKind.PERMANENT, code="ValueError", summary="no good")
    await api.backend.ledger.settle(
        [Settlement(delivery=each, outcome=Failed(error=error)) for each in deliveries]
    )
    return id


async def test_dead_letters(api: Api) -> None:
    first, second = await _die(api, "a"), await _die(api, "b")
    rows = (await api.get("/v1/dead"))["items"]
    assert [row["id"] for row in rows] == [second, first]
    assert (rows[0]["kind"], rows[0]["code"], rows[0]["summary"]) == ("permanent", "ValueError", "no good")
    assert (await api.get(f"/v1/dead/{first}")) == rows[1]
    assert (await api.get("/v1/dead?queue=export"))["items"] == []
    assert await api.post("/v1/dead/replay", {"ids": [first]}) == {"replayed": 1}
    assert (await api.get(f"/v1/jobs/{first}"))["state"] == "pending"
    assert (await api.call("GET", f"/v1/dead/{first}"))[0] == 404
    assert await api.post("/v1/dead/purge", {"ids": [second]}) == {"purged": 1}
    assert (await api.get("/v1/dead"))["items"] == []
    for path in ("replay", "purge"):
        assert (await api.call("POST", f"/v1/dead/{path}", json={"ids": [str(uuid4())]}))[0] == 404
        assert (await api.call("POST", f"/v1/dead/{path}", json={"ids": []}))[0] == 400


async def test_a_tenants_dead_letters_are_its_own(api: Api) -> None:
    await api.post("/v1/tenants", {"id": "acme"})
    id = await _die(api, "a")
    editor, admin = await api.issue("editor", "acme"), await api.issue("admin", "acme")
    assert (await api.get("/v1/dead", token=editor))["items"] == []
    assert (await api.call("GET", f"/v1/dead/{id}", token=editor))[0] == 404
    assert (await api.call("POST", "/v1/dead/replay", token=editor, json={"ids": [id]}))[0] == 404
    assert (await api.call("POST", "/v1/dead/purge", token=admin, json={"ids": [id]}))[0] == 404
    assert len((await api.get("/v1/dead"))["items"]) == 1


async def test_search_goes_by_words_while_the_model_server_is_away(api: Api) -> None:
    assert await api.get("/v1/search?q=anything") == {"items": [], "degraded": True}
    for bad in ("", "?q=", "?q=%20", "?q=a&limit=0", "?q=a&limit=x", "?q=a&q=b", "?q=a%00b", "?q=a&sort=up"):
        assert (await api.call("GET", f"/v1/search{bad}"))[0] == 400, bad


async def test_drain(api: Api) -> None:
    assert (await api.call("POST", "/v1/drain"))[0] == 202
    assert api.drained == [True]


async def test_an_id_that_no_row_has_is_not_found(api: Api) -> None:
    for path in ("connectors/0", "connectors/x", f"attempts/{2**63}", "attempts/%D9%A1"):
        status, content = await api.call("GET", f"/v1/{path}")
        assert (status, content["error"]["code"]) == (404, "not_found"), path


async def test_what_is_not_served_is_said_in_json(api: Api) -> None:
    assert (await api.call("GET", "/v1/nothing"))[1]["error"]["code"] == "no_such_route"
    status, content = await api.call("PUT", "/v1/tenants")
    assert (status, content["error"]["code"]) == (405, "method_not_allowed")


async def test_bodies_are_bounded_and_must_be_json(api: Api) -> None:
    as_json = {"Content-Type": "application/json"}
    status, content = await api.call("POST", "/v1/tenants", data=b'{"id": "a",}', headers=as_json)
    assert (status, content["error"]["field"]) == (400, "body")
    assert "line 1" in content["error"]["message"]
    large = b'{"id": "' + b"x" * (1024 * 1024) + b'"}'
    assert (await api.call("POST", "/v1/tenants", data=BytesIO(large), headers=as_json))[0] == 413

    async def unannounced() -> AsyncGenerator[bytes]:
        yield large

    assert (await api.call("POST", "/v1/tenants", data=unannounced(), headers=as_json))[0] == 413
    # What a foreign page's form can send without asking first.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        status, _ = await api.call("POST", "/v1/tenants", data=b'{"id": "a"}', headers={"Content-Type": kind})
        assert status == 415
    assert (await api.call("POST", "/v1/tenants", json=["a"]))[0] == 400


async def _overslept(call: Call) -> Answer:
    await asyncio.sleep(60)
    return Answer()


def _raising(error: Exception) -> Handler:
    async def handler(call: Call) -> Answer:
        raise error

    return handler


TROUBLE: list[tuple[Handler, int, str]] = [
    (_overslept, 503, "deadline"),
    (_raising(RuntimeError("sesame")), 500, "internal"),
    (_raising(StoreDown("postgres", "reading")), 503, "store_down"),
    (_raising(QueueFull("full", retry_after_seconds=7)), 429, "queue_full"),
    (_raising(Conflict("taken")), 409, "conflict"),
    (_raising(LeaseLost("gone")), 409, "lease_lost"),
]


async def test_what_a_handler_raises_leaves_as_a_problem(database: Database, state_dir: Path) -> None:
    table = tuple(
        Route(
            method="GET",
            path=f"/v1/{code}",
            handler=handler,
            role=Role.VIEWER,
            reach="every_tenant",
            summary="",
            deadline_seconds=0.1 if code == "deadline" else 30,
        )
        for handler, _, code in TROUBLE
    )
    async with serving(database, state_dir, table=table) as api:
        for _, status, code in TROUBLE:
            headers = {"Authorization": f"Bearer {api.token}"}
            async with api.client.get(f"{api.base}/v1/{code}", headers=headers) as answer:
                content = await answer.json()
                assert (answer.status, content["error"]["code"]) == (status, code)
                assert "sesame" not in str(content)
                assert ("Retry-After" in answer.headers) == (status in (429, 503))
                if code == "queue_full":
                    assert answer.headers["Retry-After"] == "7"
