"""A Postgres connection while it is borrowed: its transactions, and the errors that mean an outage."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from typing import Any

import anyio
import asyncpg

from hive.logger import get_logger
from hive.store.connection import Row

log = get_logger(__name__)

RELEASE_SECONDS = 5.0

BROKEN: tuple[type[BaseException], ...] = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)
"""Whatever asyncpg raises when a connection cannot be put in order again."""


class Borrowed:
    """A borrowed connection as the rest of hive sees it: errors of the connection kind arrive as StoreDown.

    Everything else (a unique violation, say) stays asyncpg's.
    """

    __slots__ = ("_depth", "_raw", "_translating")

    def __init__(self, raw: Any, translating: Callable[[str], AbstractContextManager[None]]) -> None:
        self._raw = raw
        self._translating = translating
        self._depth = 0

    async def execute(self, query: str, *args: Any, timeout: float | None = None) -> str:
        with self._translating("running a statement"):
            return await self._raw.execute(query, *args, timeout=timeout)

    async def executemany(
        self, command: str, args: Iterable[Sequence[Any]], *, timeout: float | None = None
    ) -> None:
        with self._translating("running a statement"):
            await self._raw.executemany(command, args, timeout=timeout)

    async def fetch(self, query: str, *args: Any, timeout: float | None = None) -> Sequence[Row]:
        with self._translating("running a query"):
            return await self._raw.fetch(query, *args, timeout=timeout)

    async def fetchrow(self, query: str, *args: Any, timeout: float | None = None) -> Row | None:
        with self._translating("running a query"):
            return await self._raw.fetchrow(query, *args, timeout=timeout)

    async def fetchval(self, query: str, *args: Any, timeout: float | None = None) -> Any:
        with self._translating("running a query"):
            return await self._raw.fetchval(query, *args, timeout=timeout)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """A transaction; inside of one, a savepoint."""
        if self._depth == 0:
            async with self.scope("begin", "commit", "rollback"):
                yield
            return
        name = f"hive_{self._depth}"
        undo = f"rollback to savepoint {name}; release savepoint {name}"
        async with self.scope(f"savepoint {name}", f"release savepoint {name}", undo):
            yield

    @asynccontextmanager
    async def scope(self, begin: str, end: str, undo: str) -> AsyncGenerator[None]:
        """``begin`` the body, then ``end`` it, or ``undo`` it after an error or a cancellation.

        Each is one message, whatever it holds: asyncpg's own transactions take one for every statement.
        Ending a transaction in which a failed statement was ignored raises, where a plain COMMIT would roll
        back and say nothing.
        """
        try:
            with self._translating("beginning a transaction"):
                await self._raw.execute(begin)
        except BaseException:
            # It may have begun all the same. A savepoint of which that is so ends with its transaction.
            if self._depth == 0:
                await self._undo(undo)
            raise
        self._depth += 1
        try:
            yield
            with self._translating("committing"):
                await self._raw.execute(f"select; {end}")
        except BaseException:
            await self._undo(undo)
            raise
        finally:
            self._depth -= 1

    def is_in_transaction(self) -> bool:
        return self._raw.is_in_transaction()

    async def copy_records_to_table(
        self,
        table_name: str,
        *,
        records: Iterable[Sequence[Any]],
        columns: Sequence[str],
        schema_name: str | None = None,
        timeout: float | None = None,
    ) -> str:
        with self._translating("copying rows"):
            return await self._raw.copy_records_to_table(
                table_name, records=records, columns=columns, schema_name=schema_name, timeout=timeout
            )

    async def _undo(self, undo: str) -> None:
        """Roll back after an error or a cancellation. A connection that cannot is cut."""
        undone = False
        with anyio.CancelScope(shield=True):
            try:
                async with asyncio.timeout(RELEASE_SECONDS):
                    await self._raw.execute(undo)
                undone = True
            except BROKEN:
                log.debug("postgres.connection_cut")
            finally:
                if not undone:
                    with suppress(asyncpg.InterfaceError):  # it may be cut already
                        self._raw.terminate()
