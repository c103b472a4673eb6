"""What goes wrong at the command line, as one line for people and an exit code."""

from collections.abc import Generator
from contextlib import contextmanager

FAILED = 1
CONFIGURATION = 2
STORES_MISSING = 3


class CommandFailed(Exception):
    """A command could not do what it was asked. ``code``: the exit code (DESIGN §7)."""

    def __init__(self, message: str, *, remedy: str | None = None, code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code

    def line(self) -> str:
        """``error: message (remedy)``."""
        return f"error: {self.message}" + (f" ({self.remedy})" if self.remedy else "")


class NotRunning(CommandFailed):
    """Nothing answers for this state folder."""


class NotAnswering(CommandFailed):
    """Something is there, but did not answer in time or cannot right now: worth asking again."""


class Refused(CommandFailed):
    """hive answered with a problem. ``status`` is HTTP's."""

    def __init__(self, message: str, *, status: int, kind: str, remedy: str | None = None) -> None:
        super().__init__(message, remedy=remedy)
        self.status = status
        self.kind = kind


@contextmanager
def hive_errors() -> Generator[None]:
    """Turn hive's own errors into CommandFailed with their exit code, for commands that use hive directly."""
    from hive.errors import ConfigurationError, HiveError, StoreDown, StoresMissing

    try:
        yield
    except HiveError as error:
        if isinstance(error, ConfigurationError):
            code = CONFIGURATION
        elif isinstance(error, StoresMissing | StoreDown):
            code = STORES_MISSING
        else:
            code = FAILED
        raise CommandFailed(error.message, remedy=error.remedy, code=code) from error
