import asyncio
import math
from datetime import UTC, datetime, timedelta

import pytest

from hive.backoff import NEVER, Retry
from hive.broker.port import Delivery, Lane
from hive.errors import HandedBack, LeaseLost, NeedsOperator, Permanent, StoreDown, Transient
from hive.ids import ProcessId, QueueName, TaskName, new_message_id, new_process_id
from hive.ingest.fetching import ChildDied
from hive.outcomes import ErrorKind, ErrorRecord, ExitDetail, Failed, Outcome, Released, Retrying
from hive.providers import Providers
from hive.providers import Throttled as ProviderThrottled
from pools.children import ChildTaskError
from pools.judgement import PATIENCE_SECONDS, outcome_of_deadline, outcome_of_error, record, summary_of

STEADY = Retry(on=(TimeoutError,), delays_seconds=(10, 30), jitter=0)
NOW = datetime(2001, 1, 8, tzinfo=UTC)


def judged(error: BaseException, policy: Retry, delivery: Delivery) -> Outcome | None:
    return outcome_of_error(error, policy, delivery, now=NOW)


def delivery(attempt: int = 1, max_attempts: int = 3, *, age_seconds: float = 0.0) -> Delivery:
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
        enqueued_at=NOW - timedelta(seconds=age_seconds),
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
    outcome = judged(error, STEADY, delivery())
    assert isinstance(outcome, Failed)
    assert (outcome.error.kind, outcome.error.code) == (kind, code)


@pytest.mark.parametrize(
    ("error", "attempt", "delay"),
    [
        (TimeoutError(), 1, 10),
        (TimeoutError(), 2, 30),
        (StoreDown("Postgres", "reading"), 1, 10),
        (Transient("slow down", retry_after_seconds=77), 1, 77),
        (Transient("for ever", retry_after_seconds=math.inf), 1, 86_400),
        (Transient("no number", retry_after_seconds=math.nan), 1, 0),
        (ChildTaskError("TimeoutError", "t", transient=True), 2, 30),
        (ChildTaskError("Throttled", "t", transient=True, retry_after_seconds=5), 1, 5),
    ],
)
def test_listed_errors_are_retried_after_the_delay_or_what_was_asked_for(
    error: BaseException, attempt: int, delay: float
):
    outcome = judged(error, STEADY, delivery(attempt))
    assert isinstance(outcome, Retrying)
    assert outcome.delay_seconds == delay
    assert not outcome.crashed


@pytest.mark.parametrize("error", [TimeoutError(), Transient("t", retry_after_seconds=1)])
def test_retries_end_with_the_policy_or_the_message(error: BaseException):
    for spent in (delivery(3), delivery(1, max_attempts=1)):
        outcome = judged(error, STEADY, spent)
        assert isinstance(outcome, Failed)
        assert outcome.error.kind is ErrorKind.EXHAUSTED


def test_a_dead_child_is_charged_as_a_crash_even_without_retries():
    detail = ExitDetail(exit="signal", signal=9)
    outcome = judged(ChildDied(detail, "killed"), NEVER, delivery(1, 1))
    assert isinstance(outcome, Retrying)
    assert outcome.crashed
    assert outcome.exit == detail


def test_a_child_past_its_wall_clock_is_a_deadline_and_burns_an_attempt():
    detail = ExitDetail(exit="wall_clock", signal=9)
    outcome = judged(ChildDied(detail, "late"), STEADY, delivery())
    assert isinstance(outcome, Retrying)
    assert not outcome.crashed
    assert outcome.error.code == "hard_deadline"
    assert outcome.exit == detail
    assert isinstance(judged(ChildDied(detail, "late"), NEVER, delivery()), Failed)


def test_a_deadline_is_retried_until_the_attempts_are_used_up():
    assert isinstance(outcome_of_deadline("soft_deadline", STEADY, delivery(2)), Retrying)
    given_up = outcome_of_deadline("soft_deadline", STEADY, delivery(3))
    assert isinstance(given_up, Failed)
    assert (given_up.error.kind, given_up.error.code) == (ErrorKind.DEADLINE, "soft_deadline")


def test_handed_back_and_lost():
    assert isinstance(judged(HandedBack(), STEADY, delivery()), Released)
    assert judged(LeaseLost("taken over"), STEADY, delivery()) is None


@pytest.mark.parametrize(
    ("errors", "expected"),
    [
        ([HandedBack()], Released),
        ([HandedBack(), TimeoutError()], Retrying),
        ([HandedBack(), ProviderThrottled()], Retrying),
        ([ProviderThrottled(), ValueError()], Failed),
        ([TimeoutError(), StoreDown("Redis", "x")], Retrying),
        ([TimeoutError(), ValueError()], Failed),
        ([ExceptionGroup("inner", [TimeoutError()])], Retrying),
        ([ValueError(), LeaseLost("x")], type(None)),
    ],
)
def test_of_several_errors_the_gravest_decides(errors: list[Exception], expected: type):
    assert isinstance(judged(ExceptionGroup("several", errors), STEADY, delivery()), expected)


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

    outcome = judged(Nasty(), STEADY, delivery())
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "Nasty"


def test_an_error_class_without_a_code_of_its_own_is_named_by_its_class():
    outcome = judged(Throttled("slow"), STEADY, delivery())
    assert isinstance(outcome, Retrying)
    assert outcome.error.code == "Throttled"


@pytest.mark.parametrize("policy", [STEADY, NEVER])
@pytest.mark.parametrize("attempt", [1, 3])
async def test_what_is_throttled_waits_without_a_charge_whatever_its_policy(policy: Retry, attempt: int):
    with pytest.raises(ProviderThrottled) as caught:
        async with Providers().call("openai") as call:
            call.check(429, {"Retry-After": "90"})
    expected = Retrying(
        delay_seconds=90,
        error=ErrorRecord(
            kind=ErrorKind.THROTTLED, code="throttled", summary="throttled by openai: openai answered 429"
        ),
        charged=False,
    )
    assert judged(caught.value, policy, delivery(attempt)) == expected
    group = ExceptionGroup("several", [HandedBack(), caught.value])
    assert judged(group, policy, delivery(attempt)) == expected
    charged = judged(ExceptionGroup("several", [caught.value, TimeoutError()]), STEADY, delivery())
    assert isinstance(charged, Retrying)
    assert charged.charged, "an error that burns an attempt weighs more"


def test_a_child_that_is_throttled_waits_as_well():
    error = ChildTaskError("Throttled", "slow", transient=True, retry_after_seconds=5, throttled=True)
    outcome = judged(error, NEVER, delivery(3))
    assert isinstance(outcome, Retrying)
    assert (outcome.charged, outcome.delay_seconds, outcome.error.kind) == (False, 5, ErrorKind.THROTTLED)


@pytest.mark.parametrize("asked", [None, 0])
@pytest.mark.parametrize(
    ("age", "least", "most"), [(-9, 0.8, 1.2), (0, 0.8, 1.2), (20, 16, 24), (3600, 240, 360)]
)
def test_waits_that_nobody_asked_for_double_with_the_age(
    age: float, least: float, most: float, asked: float | None
):
    outcome = judged(ProviderThrottled(retry_after_seconds=asked), NEVER, delivery(age_seconds=age))
    assert isinstance(outcome, Retrying)
    assert least <= outcome.delay_seconds <= most
    assert not outcome.charged


def test_being_throttled_is_charged_in_the_end_and_given_up_with_its_cause():
    late = PATIENCE_SECONDS + 1
    charged = judged(ProviderThrottled(retry_after_seconds=7), STEADY, delivery(2, age_seconds=late))
    assert isinstance(charged, Retrying)
    assert (charged.charged, charged.delay_seconds) == (True, 7)
    for spent in (delivery(3, age_seconds=late), delivery(3)._replace(enqueued_at=None)):
        outcome = judged(ProviderThrottled("openai answered 429"), STEADY, spent)
        assert isinstance(outcome, Failed)
        assert outcome.error == ErrorRecord(
            kind=ErrorKind.EXHAUSTED, code="throttled", summary="openai answered 429"
        )
