"""The database connection as the rest of hive sees it: the part of asyncpg that is used, typed."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

Row = Mapping[str, Any]


class Connection(Protocol):
    """A borrowed Postgres connection. ``$1`` placeholders; arguments are converted by their SQL type.

    ``uuid`` comes and goes as ``uuid.UUID``, ``timestamptz`` as aware ``datetime``, ``jsonb`` as Python
    values (a codec is set), arrays as lists, ``hive_ext.vector`` as ``hive.vector.Vector``.
    """

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str: ...
    async def executemany(
        self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None
    ) -> None: ...
    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Sequence[Row]: ...
    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Row | None: ...
    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any: ...
    def transaction(self) -> AbstractAsyncContextManager[object]: ...
    def is_in_transaction(self) -> bool: ...
    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: Iterable[Sequence[Any]],
        columns: Sequence[str],
        schema_name: str | None = None,
        timeout: float | None = None,
    ) -> str: ...
