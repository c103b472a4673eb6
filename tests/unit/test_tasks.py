"""@task, the registry, the client's checks, and tenancy that fails closed."""

import copy
import os
import pickle
import uuid
from typing import Any

import pytest

from hive import Client, Context, Retry
from hive.broker.port import Broker, Lane, Written
from hive.broker.wire import decode, encode, text_of
from hive.errors import ConfigurationError, InvalidInput, TenantMissing, UnknownTask
from hive.ids import QueueName, TenantId, new_message_id, time_ordered
from hive.tasks import Execution, Registry, task
from hive.tenancy import acting_for, current_tenant, key_prefix_of, parse_tenant, schema_of, search_path_of


def _registry() -> Registry:
    return Registry()


def test_execution_follows_the_kind_of_function() -> None:
    registry = _registry()

    @task(into=registry)
    async def on_loop(context: Context) -> None: ...

    @task(into=registry)
    def in_thread(context: Context) -> None: ...

    @task(into=registry, process=True)
    def in_child(context: Context) -> None: ...

    assert on_loop.options.execution is Execution.LOOP
    assert in_thread.options.execution is Execution.THREAD
    assert in_child.options.execution is Execution.PROCESS
    assert {each.name for each in registry} == {"on_loop", "in_thread", "in_child"}


def test_two_functions_under_one_name_are_refused() -> None:
    registry = _registry()

    @task(into=registry, name="same")
    async def first(context: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="same"):

        @task(into=registry, name="same")
        async def second(context: Context) -> None: ...


def test_impossible_tasks_are_refused() -> None:
    registry = _registry()
    with pytest.raises(ConfigurationError, match="plain `def`"):

        @task(into=registry, process=True)
        async def a(context: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="hard_seconds"):

        @task(into=registry, soft_seconds=10, hard_seconds=5)
        async def b(context: Context) -> None: ...

    with pytest.raises(UnknownTask):
        registry.get("absent")


def _client(registry: Registry, routes: dict[QueueName, Broker] | None = None) -> Client:
    return Client(routes=routes or {}, registry=registry)


def test_a_message_carries_the_policy_and_checked_arguments() -> None:
    registry = _registry()

    @task(into=registry, queue="mail", lane=Lane.HIGH, retry=Retry(delays_seconds=(1, 2)))
    async def send_mail(context: Context, to: str, copies: int = 1) -> None: ...

    client = _client(registry)
    message = client.message(send_mail, {"to": "a@example.org"}, tenant=TenantId("acme"), key="k")
    assert (message.queue, message.lane, message.max_attempts) == ("mail", Lane.HIGH, 3)
    assert message.tenant == "acme"
    for wrong in ({}, {"to": "a", "cc": "b"}):
        with pytest.raises(InvalidInput, match="send_mail"):
            client.message(send_mail, wrong, tenant=TenantId("acme"))
    for unstorable in ({"to": object()}, {"to": float("nan")}, {"to": "x" * 70_000}):
        with pytest.raises(InvalidInput):
            client.message(send_mail, unstorable, tenant=TenantId("acme"))


def test_arguments_are_written_once_and_again_after_a_change() -> None:
    registry = _registry()

    @task(into=registry)
    async def greet(context: Context, name: str) -> None: ...

    made = _client(registry).message(greet, {"name": "Zoë"}, tenant=TenantId("acme"))
    assert isinstance(made.args, Written)
    assert made.args.text == text_of(made.args) == '{"name":"Zoë"}'
    changed = made._replace(args={"name": "Bo"})
    assert text_of(changed.args) == '{"name":"Bo"}'
    for each in (made, changed):
        assert decode(encode(each), each.queue) == each


def test_messages_of_a_kind_are_as_if_made_one_by_one() -> None:
    registry = _registry()

    @task(into=registry, queue="mail", lane=Lane.HIGH, retry=Retry(delays_seconds=(1, 2)))
    async def greet(context: Context, name: str) -> None: ...

    client = _client(registry)
    options: dict[str, Any] = {"tenant": TenantId("acme"), "lane": Lane.LOW, "delay_seconds": 2.5}
    made = list(client.messages(greet, ({"name": name} for name in ("Zoë", "Bo")), **options))
    for each, name in zip(made, ("Zoë", "Bo"), strict=True):
        assert each == client.message(greet, {"name": name}, **options)._replace(id=each.id)
        assert each.args == {"name": name}
    assert made[0].id != made[1].id

    with pytest.raises(TenantMissing):
        client.messages(greet, [])
    following = client.messages(greet, [{"name": "Bo"}, {"nam": "Bo"}], tenant=TenantId("acme"))
    assert next(following).args == {"name": "Bo"}
    with pytest.raises(InvalidInput, match="arguments of greet"):
        next(following)


def test_arguments_fit_functions_of_every_form() -> None:
    registry = _registry()

    @task(into=registry)
    async def open_ended(context: Context, *more: int, **named: int) -> None: ...

    @task(into=registry)
    async def by_place(context: Context, first: int, /) -> None: ...

    @task(into=registry)
    async def by_name(context: Context, *, first: int, second: int = 2) -> None: ...

    open_ended.check({})
    open_ended.check({"x": 1, "more": 2})
    by_name.check({"first": 1})
    by_name.check({"second": 2, "first": 1})
    for declared, wrong in ((by_place, {"first": 1}), (by_name, {}), (by_name, {"first": 1, "third": 3})):
        with pytest.raises(InvalidInput, match=declared.name):
            declared.check(wrong)


def test_a_forked_child_has_ids_of_its_own() -> None:
    ends = [os.pipe() for _ in range(2)]
    for _, end in ends:
        child = os.fork()
        if child == 0:
            os.write(end, time_ordered().bytes)
            os._exit(0)
        os.waitpid(child, 0)
    drawn = {os.read(end, 16)[8:] for end, _ in ends} | {time_ordered().bytes[8:]}
    assert len(drawn) == 3
    for both in ends:
        for end in both:
            os.close(end)


def test_tenant_work_without_a_tenant_raises() -> None:
    registry = _registry()

    @task(into=registry)
    async def tenant_task(context: Context) -> None: ...

    @task(into=registry, scope="system")
    async def system_task(context: Context) -> None: ...

    client = _client(registry)
    with pytest.raises(TenantMissing):
        client.message(tenant_task, {})
    with acting_for(TenantId("acme")):
        assert client.message(tenant_task, {}).tenant == "acme"
        assert client.message(system_task, {}).tenant is None


async def test_a_queue_without_a_pool_is_refused() -> None:
    registry = _registry()

    @task(into=registry, queue="nowhere", scope="system")
    async def lost(context: Context) -> None: ...

    with pytest.raises(ConfigurationError, match="nowhere"):
        await lost.send(_client(registry))


def test_the_current_tenant_fails_closed_and_nests() -> None:
    with pytest.raises(TenantMissing):
        current_tenant()
    with acting_for(TenantId("a")):
        with acting_for(TenantId("b")):
            assert current_tenant() == "b"
        assert current_tenant() == "a"
        with acting_for(None), pytest.raises(TenantMissing):
            current_tenant()


@pytest.mark.parametrize("bad", ["", "A", "a-b", "a b", "_a", "a" * 49, "a;drop", "é", "a\n"])
def test_bad_tenant_ids_make_no_names(bad: str) -> None:
    for make in (parse_tenant, schema_of, search_path_of, key_prefix_of):
        with pytest.raises(InvalidInput):
            make(TenantId(bad))


def test_names_never_mention_public_schema() -> None:
    assert search_path_of(TenantId("public")) == "tenant_public, hive_ext"


def test_ids_sort_by_time_and_are_version_7() -> None:
    ids = [new_message_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(each.version == 7 and each.variant == uuid.RFC_4122 for each in ids)
    milliseconds = [each.int >> 80 for each in ids]
    assert milliseconds == sorted(milliseconds)
    assert time_ordered().int >> 80 >= milliseconds[-1]


def test_an_id_is_a_uuid_like_any_other() -> None:
    made = time_ordered()
    same = uuid.UUID(str(made))
    assert (made, hash(made), repr(made), made.is_safe) == (same, hash(same), repr(same), same.is_safe)
    assert (made.version, made.variant) == (7, uuid.RFC_4122)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made
