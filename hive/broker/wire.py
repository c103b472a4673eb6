"""The wire format: one message as JSON, for the stream and the outbox. This file is its whole description.

::

    {"v": 1, "id": "0192…", "task": "check", "args": {…},          always
     "tenant": "acme", "lane": 0, "key": "k", "drop": true,        where they differ from the default
     "resource": "r", "cost": 5, "delay": 2.5, "expires": 900,
     "max": 2, "parent": "0191…", "trace": "…"}

| field | meaning | default |
|---|---|---|
| v | version of this format | required |
| id, parent | UUID as 32 hex digits | parent: none |
| task | the task's name, 1 to 200 characters | required |
| args | a JSON object of at most 64 KiB | required |
| tenant | a tenant's id | none: system work |
| lane | 0 high, 1 normal, 2 low | 1 |
| key, resource, trace | text of at most 512 characters | none |
| drop | `while_running` is "drop" rather than "rerun" | false |
| cost | 1 to 1,000,000 | 1 |
| delay, expires | seconds from the time of publishing, by the store's clock | 0, never |
| max | how often it may run, 1 to 32,767 | 4 |

The queue is not part of it: it is known from the stream's key, or the outbox's column. Unknown fields are
ignored, so that version 1 can gain some; another version is refused. Text holds no NUL and no half of a
surrogate pair, and numbers are finite, since Postgres could store none of these in a dead letter.
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, cast
from uuid import UUID

from hive.broker.port import Arguments, Lane, Message, Written
from hive.errors import HiveError, InvalidInput
from hive.ids import MessageId, QueueName, TaskName, TenantId
from hive.tenancy import parse_tenant

VERSION: Final = 1
MAX_ARGUMENT_BYTES: Final = 64 * 1024
MAX_MESSAGE_BYTES: Final = MAX_ARGUMENT_BYTES + 8 * 1024
MAX_TASK: Final = 200
MAX_TEXT: Final = 512
MAX_COST: Final = 1_000_000
MAX_ATTEMPTS: Final = 32_767
MAX_SECONDS: Final = 10 * 366 * 86_400.0


class Unparsable(HiveError):
    """A message on the wire could not be read."""

    code = "unparsable"


def encode(message: Message) -> bytes:
    """``message`` on the wire; raises InvalidInput naming the field that does not fit."""
    shape = message[2:]
    # By their types as well: 5.0 and 5 are the same to a cache, and not to who reads the message.
    exact = (
        type(message.cost) is int
        and type(message.max_attempts) is int
        and message.delay_seconds is not True
        and message.expires_seconds is not True
    )
    rest = _written.get(shape) if exact else None
    if rest is None:
        rest = _dump("message", _fields(message))[1:]
        if (
            message.key is None and message.parent is None and message.trace is None
        ):  # those are of one message each
            if len(_written) >= 1_000:
                _written.clear()
            _written[shape] = rest
    return f'{{"v":{VERSION},"id":"{message.id.hex}","args":{text_of(message.args)},{rest}'.encode()


_written: Final[dict[object, str]] = {}  # what most messages of a batch have in common, checked, as JSON


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def envelope(message: Message) -> dict[str, Any]:
    """``message`` as the JSON object that stands on the wire; raises InvalidInput naming a wrong field."""
    return {"v": VERSION, "id": message.id.hex, "args": message.args, **_fields(message)}


def _fields(message: Message) -> dict[str, Any]:
    check(message)
    fields: dict[str, Any] = {"task": message.task}
    if message.tenant is not None:
        fields["tenant"] = message.tenant
    if message.lane is not Lane.NORMAL:
        fields["lane"] = int(message.lane)
    if message.key is not None:
        fields["key"] = message.key
    if message.while_running == "drop":
        fields["drop"] = True
    if message.resource is not None:
        fields["resource"] = message.resource
    if message.cost != 1:
        fields["cost"] = message.cost
    if message.delay_seconds:
        fields["delay"] = message.delay_seconds
    if message.expires_seconds is not None:
        fields["expires"] = message.expires_seconds
    if message.max_attempts != 4:
        fields["max"] = message.max_attempts
    if message.parent is not None:
        fields["parent"] = message.parent.hex
    if message.trace is not None:
        fields["trace"] = message.trace
    return fields


def arguments_text(args: Arguments) -> str:
    """``args`` as JSON text that Postgres accepts; raises InvalidInput."""
    if not args:
        return "{}"
    text = _dump("args", args)
    if len(text) > MAX_ARGUMENT_BYTES // 4 and len(text.encode()) > MAX_ARGUMENT_BYTES:
        raise InvalidInput(
            "args",
            f"longer than {MAX_ARGUMENT_BYTES} bytes",
            remedy="store the content and send its id",
        )
    return text


def written(args: Arguments) -> Written:
    """A copy of ``args`` with its ``arguments_text``; raises InvalidInput."""
    copy = Written(args)
    copy.text = arguments_text(copy)
    return copy


def text_of(args: Arguments) -> str:
    """``args`` as ``arguments_text`` writes them, now or when they were made; raises InvalidInput."""
    return args.text if type(args) is Written else arguments_text(args)


def check(message: Message) -> None:
    """Raise InvalidInput unless every field but ``args`` has a value that all carriers can hold."""
    check_queue(message.queue)
    if message.task not in _known_tasks:
        _text("task", message.task, MAX_TASK)
        if not message.task:
            raise InvalidInput("task", "empty")
    if message.tenant is not None and message.tenant not in _known_tenants:
        parse_tenant(message.tenant)
    for field, value in (("key", message.key), ("resource", message.resource), ("trace", message.trace)):
        if value is not None:
            _text(field, value, MAX_TEXT)
    if type(message.cost) is not int or not 1 <= message.cost <= MAX_COST:
        raise InvalidInput("cost", f"{message.cost!r} is no whole number from 1 to {MAX_COST}")
    if type(message.max_attempts) is not int or not 1 <= message.max_attempts <= MAX_ATTEMPTS:
        raise InvalidInput(
            "max_attempts", f"{message.max_attempts!r} is no whole number from 1 to {MAX_ATTEMPTS}"
        )
    if type(message.delay_seconds) not in _NUMBERS or not 0 <= message.delay_seconds <= MAX_SECONDS:
        raise InvalidInput("delay_seconds", f"{message.delay_seconds!r} is not between 0 and ten years")
    expires = message.expires_seconds
    if expires is not None and (type(expires) not in _NUMBERS or not 0 < expires <= MAX_SECONDS):
        raise InvalidInput("expires_seconds", f"{expires!r} is not between 0 and ten years")


def check_queue(queue: QueueName) -> None:
    """Raise InvalidInput unless ``queue`` can be part of a Redis key and of a Postgres channel's name."""
    if queue not in _known_queues:
        if not _QUEUE.fullmatch(queue):
            raise InvalidInput("queue", f"{queue[:60]!r}: a name is 1 to 48 of a–z, A–Z, 0–9, _ and -")
        if len(_known_queues) < 10_000:
            _known_queues.add(queue)


_NUMBERS: Final = (int, float)
_QUEUE: Final = re.compile(r"[A-Za-z0-9_-]{1,48}")
_known_queues: Final[set[QueueName]] = set()


def decode(raw: bytes, queue: QueueName) -> Message:
    """The message of ``queue`` that ``raw`` stands for; raises Unparsable, never anything else."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise Unparsable(f"{len(raw)} bytes; a message holds {MAX_MESSAGE_BYTES}")
    try:
        text = raw.decode()
        fields = _DECODER.decode(text)
        if "\\u" in text:
            _refuse_bad_text(fields)
        message = from_envelope(fields, queue)
        if len(raw) > MAX_ARGUMENT_BYTES:
            arguments_text(message.args)
        return message
    except Unparsable:
        raise
    except InvalidInput as error:
        raise Unparsable(str(error)) from error
    except RecursionError:
        raise Unparsable("nested too deeply") from None
    except (ValueError, OverflowError) as error:
        raise Unparsable(f"not JSON: {str(error)[:200]}") from error


def plain_fields(raw: bytes) -> tuple[str, TaskName, TenantId | None, Arguments] | None:
    """Id in hex, task, tenant and arguments of a message that carries nothing else; None for any other.

    What most messages are, at a third of the cost of ``decode``. What is returned has passed the same checks.
    """
    try:
        text = raw.decode()
        fields, end = _DECODER.raw_decode(text)
    except (ValueError, OverflowError, RecursionError, Unparsable):
        return None
    if type(fields) is not dict or end != len(text) or end > MAX_ARGUMENT_BYTES // 4 or "\\u" in text:
        return None
    given = cast("dict[str, Any]", fields)
    tenant = given.get("tenant")
    args, task, id = given.get("args"), given.get("task"), given.get("id")
    if (
        len(given) != 4 + (tenant is not None)
        or type(given.get("v")) is not int
        or given["v"] != VERSION
        or type(args) is not dict
        or type(id) is not str
        or type(task) is not str
        or (tenant is not None and type(tenant) is not str)
    ):
        return None
    known = task in _known_tasks and (tenant is None or tenant in _known_tenants)
    if not known and not _note_known(task, tenant):
        return None
    return id, TaskName(task), None if tenant is None else TenantId(tenant), cast("Arguments", args)


_known_tasks: Final[set[str]] = set()
_known_tenants: Final[set[str]] = set()


def _note_known(task: str, tenant: str | None) -> bool:
    """Remember that these may be in a message, so that it need not be found out for each; False if not."""
    try:
        if tenant is not None:
            parse_tenant(tenant)
        _text("task", task, MAX_TASK)
    except InvalidInput:
        return False
    if task and len(_known_tasks) < 10_000:
        _known_tasks.add(task)
    if tenant is not None and len(_known_tenants) < 100_000:
        _known_tenants.add(tenant)
    return task in _known_tasks and (tenant is None or tenant in _known_tenants)


def from_envelope(fields: object, queue: QueueName) -> Message:
    """The message of ``queue`` that a JSON object stands for; raises Unparsable or InvalidInput."""
    if not isinstance(fields, dict):
        raise Unparsable("not a JSON object")
    given = cast("dict[str, Any]", fields)
    if given.get("v") != VERSION or isinstance(given.get("v"), bool):
        raise Unparsable(f"version {str(given.get('v'))[:20]!r}; this hive reads {VERSION}")
    args = given.get("args")
    if not isinstance(args, dict):
        raise Unparsable("args: not a JSON object")
    tenant = _optional(given, "tenant", str)
    parent = _optional(given, "parent", str)
    expires = _number(given, "expires", None)
    lane = _optional(given, "lane", int)
    cost = _optional(given, "cost", int)
    attempts = _optional(given, "max", int)
    message = Message(
        id=_id(given.get("id"), "id"),
        queue=queue,
        task=TaskName(_required_text(given, "task")),
        tenant=None if tenant is None else parse_tenant(tenant),
        args=cast("Arguments", args),
        lane=Lane.NORMAL if lane is None else _lane(lane),
        key=_optional(given, "key", str),
        while_running="drop" if _optional(given, "drop", bool) else "rerun",
        resource=_optional(given, "resource", str),
        cost=1 if cost is None else cost,
        delay_seconds=_number(given, "delay", 0.0) or 0.0,
        expires_seconds=expires,
        max_attempts=4 if attempts is None else attempts,
        parent=None if parent is None else _id(parent, "parent"),
        trace=_optional(given, "trace", str),
    )
    check(message)
    return message


def _dump(field: str, value: object) -> str:
    try:
        text = _ENCODER.encode(value)
        if "\\u0000" in text:
            _refuse_bad_text(value)
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(field, "text with half of a surrogate pair") from error
    except RecursionError:
        raise InvalidInput(field, "nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise InvalidInput(field, f"not JSON: {error}") from error
    except Unparsable as error:
        raise InvalidInput(field, error.message) from error
    return text


def _text(field: str, value: str, longest: int) -> None:
    if len(value) > longest:
        raise InvalidInput(field, f"longer than {longest} characters")
    if "\x00" in value:
        raise InvalidInput(field, "text with a NUL")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise InvalidInput(field, "text with half of a surrogate pair") from error


def _refuse_bad_text(value: object) -> None:
    """Raise Unparsable if any text in ``value`` holds a NUL or half of a surrogate pair."""
    open_values: list[object] = [value]
    while open_values:
        each = open_values.pop()
        if isinstance(each, str):
            if "\x00" in each:
                raise Unparsable("text with a NUL")
            try:
                each.encode()
            except UnicodeEncodeError:
                raise Unparsable("text with half of a surrogate pair") from None
        elif isinstance(each, Mapping):
            for name, inner in cast("Mapping[object, object]", each).items():
                open_values += (name, inner)
        elif isinstance(each, list | tuple):
            open_values += cast("list[object]", each)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Unparsable(f"number {text[:40]} is too large")
    return value


def _no_constant(text: str) -> NoReturn:
    raise Unparsable(f"{text} is not JSON")


_DECODER: Final = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def _optional(fields: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise Unparsable(f"{name}: not of type {kind.__name__}")
    return value


def _required_text(fields: dict[str, Any], name: str) -> str:
    value = _optional(fields, name, str)
    if not value:
        raise Unparsable(f"{name}: missing")
    return cast(str, value)


def _number(fields: dict[str, Any], name: str, default: float | None) -> float | None:
    value = fields.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unparsable(f"{name}: not a number")
    return float(value)


def _lane(value: int) -> Lane:
    try:
        return Lane(value)
    except ValueError:
        raise Unparsable(f"lane: {value} is none of 0, 1, 2") from None


def _id(value: object, name: str) -> MessageId:
    if not isinstance(value, str) or len(value) not in (32, 36):
        raise Unparsable(f"{name}: not a UUID")
    try:
        return MessageId(UUID(value))
    except ValueError:
        raise Unparsable(f"{name}: not a UUID") from None
