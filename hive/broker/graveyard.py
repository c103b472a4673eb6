"""Dead letters of stream queues: from Redis to ``hive.dead_letter``, and back.

What is given up moves to the queue's ``dead`` stream, in one script. Here it is written to Postgres and only
then removed from there. If this process dies in between, any sweep finishes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from uuid import NAMESPACE_OID, uuid5

import asyncpg

from hive.broker.ledger_rows import printable
from hive.broker.port import DeadLetter, Message
from hive.broker.queries import load
from hive.broker.stream_keys import QueueKeys
from hive.broker.stream_scripts import StreamScripts
from hive.broker.wire import Unparsable, arguments_text, decode, envelope, from_envelope
from hive.ids import MessageId, QueueName, TenantId
from hive.logger import get_logger
from hive.outcomes import ErrorKind, ErrorRecord
from hive.store.connection import Connection, Row
from hive.store.postgres import Database
from hive.store.redis import RedisStore

log = get_logger(__name__)

SQL: Final = load("stream")
LETTERS_PER_ROUND: Final = 200
RAW_BYTES: Final = 64 * 1024
KINDS: Final = frozenset(each.value for each in ErrorKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Letter:
    """One entry of a ``dead`` stream."""

    mark: bytes
    lane: int
    id: MessageId
    raw: bytes
    message: Message | None
    error: tuple[str, str, str]
    attempts: int


class Graveyard:
    """Writes, lists and gives back dead letters of stream queues."""

    def __init__(self, store: RedisStore, database: Database, scripts: StreamScripts) -> None:
        self._store = store
        self._database = database
        self._scripts = scripts

    async def bury(self, keys: QueueKeys) -> int:
        """Write every noted letter of one queue to Postgres and acknowledge it; returns how many."""
        buried = 0
        while True:
            with self._store.translating("reading dead letters"):
                found: Any = await self._store.client.xrange(keys.dead, count=LETTERS_PER_ROUND)
            letters = [_letter(mark, fields, keys.queue) for mark, fields in found]
            if not letters:
                return buried
            async with self._database.transaction() as connection:
                await self._write(connection, keys.queue, letters)
            await self._scripts.bury(keys, [each.mark for each in letters])
            buried += len(letters)
            log.warning("stream.buried", queue=keys.queue, count=len(letters))

    async def _write(self, connection: Connection, queue: QueueName, letters: Sequence[_Letter]) -> None:
        newest = {each.id: each for each in letters}
        try:
            async with connection.transaction():
                await connection.execute(SQL["bury"], queue, *_columns(list(newest.values()), raw=False))
        except (asyncpg.DataError, asyncpg.StatementTooComplexError):
            # One of them holds JSON that Postgres refuses: all are kept as bytes rather than none.
            await connection.execute(SQL["bury"], queue, *_columns(list(newest.values()), raw=True))

    async def list(self, *, queue: QueueName | None, tenant: TenantId | None, limit: int) -> list[DeadLetter]:
        """The newest first."""
        async with self._database.acquire() as connection:
            found = await connection.fetch(SQL["dead_letters"], queue, tenant, limit)
        return [_dead_letter(row) for row in found]

    async def purge(self, ids: Sequence[MessageId]) -> int:
        """Delete for good."""
        async with self._database.acquire() as connection:
            return int(await connection.fetchval(SQL["purge"], list(ids)))


def message_of(row: Row) -> Message:
    """The message of a dead letter, as it was published, but free of its delay and expiry."""
    fields = {**row["message"], "args": row["args"]}
    fields.pop("delay", None)
    fields.pop("expires", None)
    return from_envelope(fields, QueueName(row["queue"]))


def _letter(mark: bytes, fields: dict[bytes, bytes], queue: QueueName) -> _Letter:
    raw = fields.get(b"m", b"")
    kind, code, summary = (
        printable(fields.get(name, b"").decode("utf-8", "replace"), 500)
        for name in (b"kind", b"code", b"summary")
    )
    lane, attempts = (_number(fields.get(name, b""), most) for name, most in ((b"l", 3), (b"a", 32_767)))
    # What has no id of its own gets one by its place, which stays the same when this is done again.
    id = MessageId(uuid5(NAMESPACE_OID, f"{queue}:{mark.decode()}"))
    message: Message | None = None
    if kind not in KINDS:
        kind, code, summary = ErrorKind.UNPARSABLE, "unparsable", "a letter that hive has not written"
    if kind != ErrorKind.UNPARSABLE:
        try:
            message = decode(raw, queue)
        except Unparsable as error:
            kind, code, summary = ErrorKind.UNPARSABLE, "unparsable", printable(error.message, 500)
        else:
            id = message.id
    return _Letter(
        mark=mark,
        lane=max(1, lane),
        id=id,
        raw=raw[:RAW_BYTES],
        message=message,
        error=(kind, code, summary),
        attempts=attempts,
    )


def _number(text: bytes, most: int) -> int:
    return min(int(text), most) if text.isdigit() and len(text) < 9 else 0


def _columns(letters: Sequence[_Letter], *, raw: bool) -> tuple[list[Any], ...]:
    rows = [_row(each, raw=raw) for each in letters]
    return tuple([row[at] for row in rows] for at in range(12))


def _row(letter: _Letter, *, raw: bool) -> tuple[Any, ...]:
    message = letter.message
    if message is None:
        return (
            letter.id, None, "", None, letter.raw, None, letter.lane - 1, None, *letter.error, letter.attempts
        )  # fmt: skip
    if raw:
        return (
            letter.id, message.tenant, message.task, None, letter.raw, None, int(message.lane), message.key,
            *letter.error, letter.attempts,
        )  # fmt: skip
    rest = {name: value for name, value in envelope(message).items() if name != "args"}
    return (
        letter.id, message.tenant, message.task, arguments_text(message.args), None, arguments_text(rest),
        int(message.lane), message.key, *letter.error, letter.attempts,
    )  # fmt: skip


def _dead_letter(row: Row) -> DeadLetter:
    error = ErrorRecord(
        kind=ErrorKind(row["error_kind"]), code=row["error_code"], summary=row["error_summary"]
    )
    return DeadLetter(
        id=row["id"],
        queue=row["queue"],
        task=row["task"],
        tenant=row["tenant"],
        args=row["args"],
        error=error,
        attempts=row["attempts"],
        died_at=row["died_at"],
    )
