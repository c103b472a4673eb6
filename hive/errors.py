"""hive's errors: one tree. Each docstring says when it is raised; ``remedy`` says what to do about it.

Whether something may be tried again is a class (`Transient`), never a match on a message.
"""


class HiveError(Exception):
    """The root of every error hive raises on purpose."""

    code = "error"

    def __init__(self, message: str, *, remedy: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class Transient(HiveError):
    """Something that passes by itself: worth a retry.

    ``retry_after_seconds``: what the other side asked for, if it did; it wins over the policy's delay.
    """

    code = "transient"

    def __init__(
        self, message: str, *, retry_after_seconds: float | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message, remedy=remedy)
        self.retry_after_seconds = retry_after_seconds


class StoreDown(Transient):
    """Postgres or Redis did not answer: which store, during what."""

    code = "store_down"

    def __init__(self, store: str, doing: str, detail: str = "") -> None:
        super().__init__(f"{store} did not answer while {doing}" + (f": {detail}" if detail else ""))
        self.store = store
        self.doing = doing


class ConfigurationError(HiveError):
    """A setting is unknown, of the wrong type, or does not fit the others. Exit code 2."""

    code = "configuration"


class StoresMissing(HiveError):
    """A store stayed away for the whole start-up wait. Exit code 3."""

    code = "stores_missing"


class InvalidInput(HiveError):
    """A request, message or argument that hive refuses: ``field`` names what is wrong."""

    code = "invalid_input"

    def __init__(self, field: str, message: str, *, remedy: str | None = None) -> None:
        super().__init__(f"{field}: {message}", remedy=remedy)
        self.field = field


class NotFound(HiveError):
    """The named thing does not exist (or belongs to another tenant)."""

    code = "not_found"


class Conflict(HiveError):
    """The request does not fit the present state: something else holds the key, or is under way."""

    code = "conflict"


class TenantMissing(HiveError):
    """Tenant work was asked for without a tenant. Fails closed: nothing was read or written."""

    code = "tenant_missing"


class UnknownTenant(NotFound):
    """No tenant of that id."""

    code = "unknown_tenant"


class UnknownTask(InvalidInput):
    """No task of that name is registered in this process."""

    code = "unknown_task"


class QueueFull(Transient):
    """The queue's ``max_depth`` is reached: the message was not accepted."""

    code = "queue_full"


class LeaseLost(HiveError):
    """The delivery's lease or fence is no longer ours: someone else runs, or has run, this job."""

    code = "lease_lost"


class NeedsOperator(HiveError):
    """Raised by a task when retrying is useless until a person acts (a revoked credential, say)."""

    code = "needs_operator"


class Permanent(HiveError):
    """Raised by a task to fail at once, whatever its retry policy."""

    code = "permanent"


class HandedBack(HiveError):
    """Raised by a handler that stopped early because it was asked to (``context.stopping``).

    The job goes back in line without a burned attempt; what the handler has stored so far stays.
    """

    code = "handed_back"

    def __init__(self, message: str = "stopped early, as asked") -> None:
        super().__init__(message)
