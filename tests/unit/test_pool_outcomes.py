"""Each way a handler can end, and what the pool makes of it."""

import asyncio
import threading
from typing import Any

import anyio
import pytest

from hive.backoff import Retry
from hive.broker.port import Message
from hive.context import Context
from hive.errors import ConfigurationError, HandedBack, LeaseLost, NeedsOperator, Transient
from hive.ids import QueueName, TaskName, new_message_id
from hive.ingest.fetching import ChildDied
from hive.outcomes import ErrorKind, ExitDetail
from hive.tenancy import current_tenant, current_tenant_or_none
from patience import until
from pool_kit import ACME, Rig, declare
from pools.children import ChildCall, ChildTaskError

SOON = Retry(on=(ValueError,), delays_seconds=(0, 0))


async def test_success_runs_in_the_messages_tenant_and_leaves_nothing_behind():
    rig = Rig()
    seen: list[object] = []

    async def handler(context: Context, word: str) -> None:
        seen.append((word, current_tenant(), context.tenant, context.attempt))

    declared = declare(rig, handler)
    async with rig.serving():
        (job,) = await rig.send(declared, word="hi")
        await until(lambda: rig.labels.get(job) == "completed")
    assert seen == [("hi", ACME, ACME, 1)]
    assert current_tenant_or_none() is None
    assert rig.pool.slots.free == 4
    assert not rig.pool.running()
    assert rig.started[0].tenant == ACME


async def test_a_thread_handler_has_its_tenant_and_reaches_the_loop():
    rig = Rig()
    seen: list[object] = []

    def handler(context: Context) -> None:
        seen.append(current_tenant())
        seen.append(threading.current_thread() is threading.main_thread())
        context.portal.call(context.progress, "reading", 1, 2)

        async def tenant() -> str:
            return current_tenant()

        seen.append(context.portal.call(tenant))

    declared = declare(rig, handler)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("completed") == 1)
    assert seen == [ACME, False, ACME]


async def test_a_handler_on_the_loop_has_no_portal():
    rig = Rig()

    async def handler(context: Context) -> None:
        context.portal.call(print)

    declared = declare(rig, handler)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("failed") == 1)


@pytest.mark.parametrize(
    ("error", "label", "kind"),
    [
        (KeyError("k"), "failed", ErrorKind.PERMANENT),
        (NeedsOperator("revoked"), "failed", ErrorKind.NEEDS_OPERATOR),
        (SystemExit(1), "failed", ErrorKind.PERMANENT),
        (asyncio.CancelledError(), "failed", ErrorKind.PERMANENT),
        (LeaseLost("gone"), "stale", None),
    ],
)
@pytest.mark.parametrize("threaded", [False, True])
async def test_errors(error: BaseException, label: str, kind: ErrorKind | None, threaded: bool):
    rig = Rig()

    async def on_loop(context: Context) -> None:
        raise error

    def in_thread(context: Context) -> None:
        raise error

    declared = declare(rig, in_thread if threaded else on_loop)
    async with rig.serving():
        (job,) = await rig.send(declared)
        await until(lambda: rig.labels.get(job) == label)
        await until(lambda: rig.pool.slots.free == 4)
    dead = await rig.memory.dead_letters()
    assert [letter.error.kind for letter in dead] == ([] if kind is None else [kind])


async def test_a_listed_error_is_retried_until_it_is_exhausted():
    rig = Rig()
    attempts: list[int] = []

    async def handler(context: Context) -> None:
        attempts.append(context.attempt)
        raise ValueError("always")

    declared = declare(rig, handler, retry=SOON)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("failed") == 1)
    assert attempts == [1, 2, 3]
    (letter,) = await rig.memory.dead_letters()
    assert letter.error.kind is ErrorKind.EXHAUSTED
    assert letter.error.summary == "ValueError: always"


async def test_a_task_group_of_the_handler_is_judged_by_what_is_in_it():
    rig = Rig()
    runs: list[int] = []

    async def handler(context: Context) -> None:
        runs.append(context.attempt)
        if context.attempt == 1:
            async with anyio.create_task_group() as group:
                group.start_soon(fail)

    async def fail() -> None:
        raise Transient("passes", retry_after_seconds=0)

    declared = declare(rig, handler)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("completed") == 1)
    assert runs == [1, 2]


async def test_unknown_tasks_bad_arguments_and_missing_tenants_never_enter_a_handler():
    rig = Rig()
    entered: list[object] = []

    async def handler(context: Context, size: int, *, word: str = "") -> None:
        entered.append(context)

    declare(rig, handler, name="known")

    def message(name: str, tenant: Any = ACME, **args: Any) -> Message:
        return Message(
            id=new_message_id(), queue=QueueName("work"), task=TaskName(name), tenant=tenant, args=args
        )

    bad = [
        (message("unknown"), ErrorKind.UNKNOWN_TASK, "unknown_task"),
        (message("known", word="x"), ErrorKind.UNPARSABLE, "arguments"),
        (message("known", size=1, other=2), ErrorKind.UNPARSABLE, "arguments"),
        (message("known", None, size=1), ErrorKind.PERMANENT, "tenant_missing"),
    ]
    async with rig.serving():
        await rig.memory.publish([each for each, _, _ in bad])
        await until(lambda: rig.count("failed") == 4)
    letters = {letter.id: letter.error for letter in await rig.memory.dead_letters()}
    for sent, kind, code in bad:
        assert (letters[sent.id].kind, letters[sent.id].code) == (kind, code)
    assert not entered


async def test_system_work_has_no_tenant():
    rig = Rig()
    seen: list[object] = []

    async def handler(context: Context) -> None:
        seen.append(current_tenant_or_none())

    declared = declare(rig, handler, scope="system")
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("completed") == 1)
    assert seen == [None]


class Children:
    """A child runner that does what a test says."""

    def __init__(self, *answers: BaseException | None) -> None:
        self.answers = list(answers)
        self.calls: list[ChildCall] = []
        self.ended = 0

    async def run_task(self, call: ChildCall, *, hard_seconds: float | None) -> None:
        self.calls.append(call)
        try:
            if not self.answers:
                await anyio.sleep_forever()
            answer = self.answers.pop(0)
            if answer is not None:
                raise answer
        finally:
            self.ended += 1


def crunch(context: Context, size: int) -> None: ...


async def test_a_process_handler_goes_to_a_child():
    children = Children(ChildDied(ExitDetail(exit="signal", signal=9), "killed"), None)
    rig = Rig(children=children)
    declared = declare(rig, crunch, process=True, retry=Retry(delays_seconds=(0, 0)))
    async with rig.serving():
        (job,) = await rig.send(declared, size=3)
        await until(lambda: rig.labels.get(job) == "completed")
    call = children.calls[0]
    assert (call.task, call.tenant, call.arguments, call.id) == ("crunch", ACME, {"size": 3}, str(job))
    assert call.function == f"{__name__}:crunch"
    assert [event.outcome for event in rig.settled] == ["retrying", "completed"]
    assert children.calls[1].attempt == 1, "the death of a child burns no attempt"


async def test_a_child_that_dies_too_often_is_poison():
    deaths = [ChildDied(ExitDetail(exit="out_of_memory"), "too big") for _ in range(3)]
    rig = Rig(children=Children(*deaths))
    declared = declare(rig, crunch, process=True, retry=Retry(delays_seconds=(0,)))
    async with rig.serving():
        await rig.send(declared, size=1)
        await until(lambda: rig.count("failed") == 1)
    (letter,) = await rig.memory.dead_letters()
    assert letter.error.kind is ErrorKind.POISON


async def test_a_childs_own_error_and_a_cancelled_child():
    children = Children(ChildTaskError("KeyError", "k"))
    rig = Rig(children=children)
    declared = declare(rig, crunch, process=True, soft_seconds=0.1, retry=Retry(delays_seconds=()))
    async with rig.serving():
        await rig.send(declared, size=1)
        await until(lambda: rig.count("failed") == 1)
        await rig.send(declared, size=1)
        await until(lambda: rig.count("failed") == 2)
    codes = {letter.error.code for letter in await rig.memory.dead_letters()}
    assert codes == {"KeyError", "soft_deadline"}
    assert children.ended == 2


async def test_handing_back_burns_no_attempt():
    rig = Rig()
    attempts: list[int] = []

    async def handler(context: Context) -> None:
        attempts.append(context.attempt)
        if len(attempts) < 3:
            raise HandedBack

    declared = declare(rig, handler)
    async with rig.serving():
        await rig.send(declared)
        await until(lambda: rig.count("completed") == 1)
    assert attempts == [1, 1, 1]
    assert rig.count("released") == 2


async def test_a_queue_without_a_broker_is_refused():
    rig = Rig()
    with pytest.raises(ConfigurationError, match="elsewhere"):
        Rig(routes={}, queues=("elsewhere",), broker=rig.memory)
