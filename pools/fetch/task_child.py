"""The child in which one ``process=True`` handler runs, once."""

import importlib
import socket
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, cast

from pools.fetch.birth import Birth
from pools.fetch.exits import OUT_OF_MEMORY_STATUS
from pools.fetch.first_frame import expect, first_frame, quiet_standard_streams
from pools.fetch.frames import Json, Kind, pack


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildContext:
    """What a handler in a child is given: who it is, and nothing to reach hive's stores with."""

    id: str
    tenant: str | None
    attempt: int
    idempotency_key: str

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"context.{name} is not there in a child process: process=True handlers have no database, "
            "no client and no services; let a task on the loop do that part"
        )


def main(connection: socket.socket, birth: Birth, zygote: int) -> int:
    """Run the call that hive sends; the status to exit with."""
    del birth, zygote
    quiet_standard_streams()
    framed, _ = first_frame(connection)
    call = cast(Mapping[str, Any], expect(framed, Kind.CALL))
    try:
        _run(call)
    except MemoryError:
        return OUT_OF_MEMORY_STATUS
    except _Raised as raised:
        connection.sendall(pack(Kind.RAISED, raised.described))
        return 0
    connection.sendall(pack(Kind.RETURNED, None))
    return 0


class _Raised(Exception):
    """The handler raised: its error, described."""

    def __init__(self, described: Json) -> None:
        super().__init__()
        self.described = described


def _run(call: Mapping[str, Any]) -> None:
    # Imported here, not with the zygote: it is the operator's code that decides what hive needs to know of
    # itself.
    from hive.tasks import Task

    retry = None
    try:
        target = _resolve(str(call["function"]))
        function = target
        if isinstance(target, Task):
            function, retry = target.function, target.options.retry
        context = ChildContext(
            id=call["id"],
            tenant=call["tenant"],
            attempt=call["attempt"],
            idempotency_key=call["idempotency_key"],
        )
        cast(Callable[..., Any], function)(context, **call["arguments"])
    except MemoryError:
        raise
    except BaseException as error:  # noqa: BLE001 - a child's runner: whatever it was, hive hears of it
        traceback.print_exc()
        raise _Raised(_describe(error, retry)) from None


def _resolve(path: str) -> Any:
    module, _, names = path.partition(":")
    found: Any = importlib.import_module(module)
    for name in names.split("."):
        found = getattr(found, name)
    return found


def _describe(error: BaseException, retry: Any) -> Json:
    from hive.errors import NeedsOperator, Permanent, Transient
    from hive.ingest.cleaning import clean
    from hive.outcomes import ErrorKind
    from hive.providers import Throttled

    kind = None
    if isinstance(error, NeedsOperator):
        kind = ErrorKind.NEEDS_OPERATOR
    elif isinstance(error, Permanent):
        kind = ErrorKind.PERMANENT
    lines = str(error).strip().splitlines()
    wait = error.retry_after_seconds if isinstance(error, Transient) else None
    return {
        "type_name": type(error).__name__,
        "summary": clean(lines[0] if lines else "", 500),
        "transient": isinstance(error, Transient) if retry is None else bool(retry.retries(error)),
        "retry_after_seconds": wait,
        "throttled": isinstance(error, Throttled),
        "kind": kind,
    }
