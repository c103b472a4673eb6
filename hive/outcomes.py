"""What one run of a job came to: a closed union, matched with ``assert_never`` at its end."""

from dataclasses import dataclass, field
from enum import StrEnum


class ErrorKind(StrEnum):
    """Why a job was given up, as dead letters show it."""

    PERMANENT = "permanent"  # the task raised an error its policy does not retry
    EXHAUSTED = "exhausted"  # it kept failing until its retries were used up
    POISON = "poison"  # it killed its child process, or hive itself, too often
    NEEDS_OPERATOR = "needs_operator"  # the task said that a person must act first
    EXPIRED = "expired"  # it waited longer than its message allowed
    UNKNOWN_TASK = "unknown_task"  # no task of that name is registered
    UNPARSABLE = "unparsable"  # the message could not be read
    DEADLINE = "deadline"  # it ran past its soft or hard deadline
    THROTTLED = "throttled"  # never given up for it: it waits until its provider has room


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRecord:
    """A cause, ready to be stored: never a payload, a document or a secret."""

    kind: ErrorKind
    code: str  # a short stable word: the exception's class, or an error's own `code`
    summary: str  # one line for people, at most 500 characters

    def __post_init__(self) -> None:
        if len(self.summary) > 500 or "\x00" in self.summary:
            object.__setattr__(self, "summary", self.summary.replace("\x00", "\ufffd")[:500])


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitDetail:
    """How a child process ended, for ``job_attempt``."""

    exit: str  # clean | error | out_of_memory | signal | stalled | wall_clock | cancelled
    signal: int | None = None
    peak_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """The handler returned. ``settled`` is true when ``context.transaction()`` already settled the job."""

    settled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrying:
    """Run again after ``delay_seconds``. ``crashed`` charges the child-crash budget instead of an attempt.

    ``charged=False`` charges nothing: it was not its fault, and whoever says so bounds how often. What it
    waits for stands in ``error`` all the same.
    """

    delay_seconds: float
    error: ErrorRecord
    crashed: bool = False
    charged: bool = True
    exit: ExitDetail | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Given up: a dead letter with its cause."""

    error: ErrorRecord
    exit: ExitDetail | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """Stopped because someone asked for it."""

    reason: str = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Released:
    """Handed back untouched: no attempt is burned and another process may claim it at once."""

    reason: str = field(default="shutdown")


Outcome = Completed | Retrying | Failed | Cancelled | Released
