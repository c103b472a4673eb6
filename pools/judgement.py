"""From an error to an outcome: retried, given up, or handed back.

| the handler raised | outcome |
|---|---|
| HandedBack | Released |
| LeaseLost | None: somebody else has the job, nothing may be written |
| NeedsOperator, Permanent | Failed, at once |
| Throttled | Retrying without a charge until the provider has room, whatever the policy; see below |
| ChildDied | Retrying, charged to the crash budget; past its wall clock: as a deadline |
| an error the retry policy lists | Retrying after its delay, or after what the other side asked for |
| … when its retries are used up | Failed, exhausted |
| anything else | Failed, permanent |

Several errors at once (an exception group) count as the gravest of them.

To be throttled is a wait, and a wait may be long: for the next day's quota, or for a backlog that a slow
provider takes days to work off. It ends all the same: a message that expires fails as ``expired``, and one
published more than ``PATIENCE_SECONDS`` ago is charged like any other retry, so that it ends as
``exhausted``, with what it waited for as the cause. (A count was rejected: a thousand waits are a quarter of
an hour for one provider and a month for another. This host's clock and the store's may differ by minutes, of
a week.)
"""

from dataclasses import replace
from datetime import datetime
from typing import Final

from hive.backoff import Retry, jittered
from hive.broker.port import Delivery
from hive.errors import HandedBack, HiveError, LeaseLost, NeedsOperator, Permanent, Transient
from hive.ingest.fetching import ChildDied
from hive.outcomes import ErrorKind, ErrorRecord, Failed, Outcome, Released, Retrying
from hive.providers import Throttled
from hive.retry_after import MOST_SECONDS
from pools.children import ChildTaskError

CRASH_DELAY_SECONDS = 10.0
"""Before a job runs again that killed its child, where its policy names no delay."""
PATIENCE_SECONDS: Final = 7 * 86_400.0
"""For how long after it was published being throttled is free for a message."""
SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 300.0
"""Between two runs of what is throttled by a provider that names no time."""


def outcome_of_error(
    error: BaseException, policy: Retry, delivery: Delivery, *, now: datetime
) -> Outcome | None:
    """What ``error`` means for ``delivery``; None when nothing may be written."""
    if isinstance(error, BaseExceptionGroup):
        error = gravest(error, policy)
    match error:
        case HandedBack():
            return Released(reason=HandedBack.code)
        case LeaseLost():
            return None
        case ChildDied() if error.detail.exit == "wall_clock":
            outcome = outcome_of_deadline("hard_deadline", policy, delivery)
            return replace(outcome, exit=error.detail)
        case ChildDied():
            delay = policy.delay(1)
            return Retrying(
                delay_seconds=jittered(CRASH_DELAY_SECONDS, 0.2) if delay is None else delay,
                error=record(ErrorKind.POISON, error.detail.exit, error.summary),
                crashed=True,
                exit=error.detail,
            )
        case ChildTaskError():
            cause = record(error.kind or ErrorKind.PERMANENT, error.type_name, str(error))
            if error.kind is not None or not error.transient:
                return Failed(error=cause)
            if error.throttled:
                return wait_or_retry(cause, policy, delivery, error.retry_after_seconds, now=now)
            return retry_or_fail(cause, policy, delivery, error.retry_after_seconds)
        case Throttled():
            by = "" if error.provider is None else f"throttled by {error.provider}: "
            cause = record(ErrorKind.PERMANENT, code_of(error), by + (error.message or summary_of(error)))
            return wait_or_retry(cause, policy, delivery, error.retry_after_seconds, now=now)
        case NeedsOperator():
            return Failed(error=record(ErrorKind.NEEDS_OPERATOR, code_of(error), summary_of(error)))
        case Permanent():
            return Failed(error=record(ErrorKind.PERMANENT, code_of(error), summary_of(error)))
        case _:
            cause = record(ErrorKind.PERMANENT, code_of(error), summary_of(error))
            if not policy.retries(error):
                return Failed(error=cause)
            asked = error.retry_after_seconds if isinstance(error, Transient) else None
            return retry_or_fail(cause, policy, delivery, asked)


def outcome_of_deadline(code: str, policy: Retry, delivery: Delivery) -> Retrying | Failed:
    """Past its soft or hard deadline: tried again while retries are left, whatever errors the policy lists.

    What makes a run late (a slow source, a full machine) mostly passes; a task that must not run again says
    ``Retry(delays_seconds=())``.
    """
    cause = record(ErrorKind.DEADLINE, code, f"ran past its {code.replace('_', ' ')}")
    delay = delay_of(policy, delivery)
    return Failed(error=cause) if delay is None else Retrying(delay_seconds=delay, error=cause)


def retry_or_fail(
    cause: ErrorRecord, policy: Retry, delivery: Delivery, asked_seconds: float | None
) -> Retrying | Failed:
    """Retry after ``asked_seconds``, else after the policy's delay; give up when the retries are used up."""
    delay = delay_of(policy, delivery)
    if delay is None:
        return Failed(error=replace(cause, kind=ErrorKind.EXHAUSTED))
    return Retrying(delay_seconds=delay if asked_seconds is None else bounded(asked_seconds), error=cause)


def wait_or_retry(
    cause: ErrorRecord, policy: Retry, delivery: Delivery, asked_seconds: float | None, *, now: datetime
) -> Retrying | Failed:
    """Have what is throttled wait without a charge; a message too old for that is retried as any other.

    Without ``asked_seconds`` it waits for as long again as it has waited since it was published: so its waits
    double, with nothing to be counted.
    """
    if delivery.enqueued_at is None:  # nothing would bound it
        return retry_or_fail(cause, policy, delivery, asked_seconds)
    age = (now - delivery.enqueued_at).total_seconds()
    if age > PATIENCE_SECONDS:
        return retry_or_fail(cause, policy, delivery, asked_seconds)
    delay = jittered(min(max(age, SHORTEST_SECONDS), LONGEST_SECONDS), 0.2)
    return Retrying(
        delay_seconds=bounded(asked_seconds) if asked_seconds else delay,
        error=replace(cause, kind=ErrorKind.THROTTLED),
        charged=False,
    )


def bounded(asked_seconds: float) -> float:
    """What the other side asked for, as far as it is one: at most a day, and never less than nothing."""
    return min(MOST_SECONDS, max(0.0, asked_seconds))


def delay_of(policy: Retry, delivery: Delivery) -> float | None:
    """The policy's delay after this attempt; None when it, or the message's own limit, allows no more."""
    if delivery.attempt >= delivery.max_attempts:
        return None
    return policy.delay(delivery.attempt)


def gravest(group: BaseExceptionGroup[BaseException], policy: Retry) -> BaseException:
    """The one of several errors that decides: a lost lease, one not retried, any other, then what waits.

    That is Throttled, and HandedBack last.
    """
    leaves = list(leaves_of(group))
    for leaf in leaves:
        if isinstance(leaf, LeaseLost):
            return leaf
    errors = [leaf for leaf in leaves if not isinstance(leaf, HandedBack)]
    for leaf in errors:
        if not policy.retries(leaf):
            return leaf
    charged = [leaf for leaf in errors if not isinstance(leaf, Throttled)]
    return (charged or errors or leaves)[0]


def leaves_of(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The errors in ``group``, nested groups opened."""
    found: list[BaseException] = []
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            found.extend(leaves_of(error))
        else:
            found.append(error)
    return found


def record(kind: ErrorKind, code: str, summary: str) -> ErrorRecord:
    """An ErrorRecord that any store accepts: one line, no lone surrogates (UTF-8 has none), not too long."""
    lines = summary.encode("utf-8", "replace").decode("utf-8").splitlines()
    return ErrorRecord(kind=kind, code=code[:64], summary=(lines[0] if lines else "")[:500])


def code_of(error: BaseException) -> str:
    """A short stable word for ``error``: its own ``code`` (not one it inherits), else its class."""
    if isinstance(error, HiveError) and ("code" in vars(error) or "code" in vars(type(error))):
        return error.code
    return type(error).__name__


def summary_of(error: BaseException) -> str:
    """The class and the first line of its text: never arguments, a payload or a traceback."""
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001 - foreign code: an error's own __str__ may fail as well
        text = "(its text could not be had)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
