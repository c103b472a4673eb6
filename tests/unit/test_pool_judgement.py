import asyncio

import pytest

from hive.backoff import NEVER, Retry
from hive.broker.port import Delivery, Lane
from hive.errors import HandedBack, LeaseLost, NeedsOperator, Permanent, StoreDown, Transient
from hive.ids import ProcessId, QueueName, TaskName, new_message_id, new_process_id
from hive.ingest.fetching import ChildDied
from hive.outcomes import ErrorKind, ExitDetail, Failed, Released, Retrying
from pools.children import ChildTaskError
from pools.judgement import outcome_of_deadline, outcome_of_error, record, summary_of

STEADY = Retry(on=(TimeoutError,), delays_seconds=(10, 30), jitter=0)


def delivery(attempt: int = 1, max_attempts: int = 3) -> Delivery:
    return Delivery(
        id=new_message_id(),
        queue=QueueName("work"),
        task=TaskName("t"),
        tenant=None,
        args={"secret": "hunter2"},
        lane=Lane.NORMAL,
        owner=ProcessId(new_process_id()),
        fence=1,
        attempt=attempt,
        max_attempts=max_attempts,
    )


class Throttled(Transient):
    """Without a code of its own."""


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (ValueError("bad"), ErrorKind.PERMANENT, "ValueError"),
        (Permanent("no"), ErrorKind.PERMANENT, "permanent"),
        (NeedsOperator("revoked"), ErrorKind.NEEDS_OPERATOR, "needs_operator"),
        (asyncio.CancelledError(), ErrorKind.PERMANENT, "CancelledError"),
        (SystemExit(3), ErrorKind.PERMANENT, "SystemExit"),
        (ChildTaskError("KeyError", "k"), ErrorKind.PERMANENT, "KeyError"),
        (
            ChildTaskError("Revoked", "r", kind=ErrorKind.NEEDS_OPERATOR),
            ErrorKind.NEEDS_OPERATOR,
            "Revoked",
        ),
    ],
)
def test_what_the_policy_does_not_list_fails_at_once(error: BaseException, kind: ErrorKind, code: str):
    outcome = outcome_of_error(error, STEADY, delivery())
    assert isinstance(outcome, Failed)
    assert (outcome.error.kind, outcome.error.code) == (kind, code)


@pytest.mark.parametrize(
    ("error", "attempt", "delay"),
    [
        (TimeoutError(), 1, 10),
        (TimeoutError(), 2, 30),
        (StoreDown("Postgres", "reading"), 1, 10),
        (Transient("slow down", retry_after_seconds=77), 1, 77),
        (ChildTaskError("TimeoutError", "t", transient=True), 2, 30),
        (ChildTaskError("Throttled", "t", transient=True, retry_after_seconds=5), 1, 5),
    ],
)
def test_listed_errors_are_retried_after_the_delay_or_what_was_asked_for(
    error: BaseException, attempt: int, delay: float
):
    outcome = outcome_of_error(error, STEADY, delivery(attempt))
    assert isinstance(outcome, Retrying)
    assert outcome.delay_seconds == delay
    assert not outcome.crashed


@pytest.mark.parametrize("error", [TimeoutError(), Transient("t", retry_after_seconds=1)])
def test_retries_end_with_the_policy_or_the_message(error: BaseException):
    for spent in (delivery(3), delivery(1, max_attempts=1)):
        outcome = outcome_of_error(error, STEADY, spent)
        assert isinstance(outcome, Failed)
        assert outcome.error.kind is ErrorKind.EXHAUSTED


def test_a_dead_child_is_charged_as_a_crash_even_without_retries():
    detail = ExitDetail(exit="signal", signal=9)
    outcome = outcome_of_error(ChildDied(detail, "killed"), NEVER, delivery(1, 1))
    assert isinstance(outcome, Retrying)
    assert outcome.crashed
    assert outcome.exit == detail


def test_a_child_past_its_wall_clock_is_a_deadline_and_burns_an_attempt():
    detail = ExitDetail(exit="wall_clock", signal=9)
    outcome = outcome_of_error(ChildDied(detail, "late"), STEADY, delivery())
    assert isinstance(outcome, Retrying)
    assert not outcome.crashed
    assert outcome.error.code == "hard_deadline"
    assert outcome.exit == detail
    assert isinstance(outcome_of_error(ChildDied(detail, "late"), NEVER, delivery()), Failed)


def test_a_deadline_is_retried_until_the_attempts_are_used_up():
    assert isinstance(outcome_of_deadline("soft_deadline", STEADY, delivery(2)), Retrying)
    given_up = outcome_of_deadline("soft_deadline", STEADY, delivery(3))
    assert isinstance(given_up, Failed)
    assert (given_up.error.kind, given_up.error.code) == (ErrorKind.DEADLINE, "soft_deadline")


def test_handed_back_and_lost():
    assert isinstance(outcome_of_error(HandedBack(), STEADY, delivery()), Released)
    assert outcome_of_error(LeaseLost("taken over"), STEADY, delivery()) is None


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([HandedBack()], Released),
        ([HandedBack(), TimeoutError()], Retrying),
        ([TimeoutError(), StoreDown("Redis", "x")], Retrying),
        ([TimeoutError(), ValueError()], Failed),
        ([ExceptionGroup("inner", [TimeoutError()])], Retrying),
        ([ValueError(), LeaseLost("x")], type(None)),
    ],
)
def test_of_several_errors_the_gravest_decides(errors: list[Exception], expected: type):
    assert isinstance(outcome_of_error(ExceptionGroup("several", errors), STEADY, delivery()), expected)


def test_a_summary_is_one_line_that_every_store_accepts():
    assert summary_of(ValueError("first\nsecond")) == "ValueError: first\nsecond"
    made = record(ErrorKind.PERMANENT, "x", "ValueError: a\x00b\udc80c\nsecond line" + "y" * 900)
    assert made.summary == "ValueError: a\ufffdb?c"
    made.summary.encode()
    assert len(record(ErrorKind.PERMANENT, "x", "z" * 900).summary) == 500


def test_an_error_whose_text_fails_is_still_reported():
    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    outcome = outcome_of_error(Nasty(), STEADY, delivery())
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "Nasty"


def test_an_error_class_without_a_code_of_its_own_is_named_by_its_class():
    outcome = outcome_of_error(Throttled("slow"), STEADY, delivery())
    assert isinstance(outcome, Retrying)
    assert outcome.error.code == "Throttled"
