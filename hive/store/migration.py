"""Bringing schemas to their newest revision.

The long-lived process asks what is pending (two cheap queries) and leaves the work to a child,
``python -m hive.store.migration``: Alembic and SQLAlchemy would cost it 30 MB for good. An empty database
needs neither; its shared schema is made in one query. The child gets the address in its environment, where no
other user of the machine sees it, and answers with one line of JSON for each schema.

Every tenant is migrated in a transaction of its own, several at once. One that fails keeps its old schema and
stops no other; what is left is done by the next run, whoever starts it. Two hives that migrate at once take
turns.
"""

import json
import os
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import asyncpg
from anyio.streams.text import TextReceiveStream

from hive.errors import ConfigurationError, Conflict, HiveError, InvalidInput, StoreDown, UnknownTenant
from hive.ids import TenantId
from hive.logger import get_logger
from hive.settings import Postgres
from hive.store import schema
from hive.store.postgres import STORE, Database
from hive.store.schema import Pending
from hive.tenancy import SHARED_SCHEMA, parse_tenant

log = get_logger(__name__)

DSN_VARIABLE = "HIVE_MIGRATION_DSN"
DEFAULT_PARALLEL = 4

OnTenant = Callable[[TenantId, str | None], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What a run changed. ``failed``: the tenants that stayed as they were, each with the reason."""

    shared: bool = False
    tenants: Sequence[TenantId] = ()
    failed: Mapping[TenantId, str] = field(default_factory=dict[TenantId, str])


async def pending(database: Database) -> Pending:
    """What lies behind the newest revisions. Raises StoreDown."""
    async with database.acquire() as connection:
        return await schema.pending(connection)


async def ensure_migrated(direct_dsn: str, *, parallel: int = DEFAULT_PARALLEL) -> Migrated:
    """Bring everything up to date; milliseconds when it is.

    Raises StoreDown, ConfigurationError (wrong address, no pgvector, no rights), or HiveError naming the
    tenants that could not be migrated, after all others were.
    """
    async with _opened(direct_dsn) as database:
        behind = await pending(database)
        if not behind:
            return Migrated()
    shared = await migrate_shared(direct_dsn) if behind.shared else False
    done = await migrate_tenants(direct_dsn, parallel=parallel)
    if done.failed:
        first, reason = next(iter(done.failed.items()))
        raise HiveError(
            f"{len(done.failed)} of {len(done.failed) + len(done.tenants)} tenants could not be migrated;"
            f" {first}: {reason}",
            remedy="mend what the reason names, then `hive migrate --continue`",
        )
    return Migrated(shared=shared, tenants=done.tenants)


async def migrate_shared(direct_dsn: str) -> bool:
    """Bring the shared schema up to date; False if it was. Raises as ``ensure_migrated`` does."""
    async with _opened(direct_dsn) as database:
        async with database.acquire() as connection:
            if not (await schema.pending(connection)).shared:
                return False
            await schema.check_extension(connection)
            fresh = await connection.fetchval("select to_regclass('hive.tenant')") is None
        if fresh:
            return await _install(database)
    async with aclosing(_child(direct_dsn, ["shared"], "")) as answers:
        return any([line["changed"] async for line in answers])


async def migrate_tenants(
    direct_dsn: str,
    tenants: Sequence[TenantId] | None = None,
    *,
    parallel: int = DEFAULT_PARALLEL,
    on_tenant: OnTenant | None = None,
) -> Migrated:
    """Bring these tenants (default: all) up to date, ``parallel`` at once.

    ``on_tenant(tenant, failure)`` is called as each is done. Cancelled or killed, the tenants done so far
    stay done and the others as they were. Raises Conflict if the shared schema has to go first, else as
    ``ensure_migrated`` does.
    """
    async with _opened(direct_dsn) as database:
        behind = await pending(database)
    if behind.shared:
        raise Conflict("the shared schema is behind, and goes first", remedy="hive migrate")
    wanted = [tenant for tenant in behind.tenants if tenants is None or tenant in set(tenants)]
    changed: list[TenantId] = []
    failed: dict[TenantId, str] = {}
    if wanted:
        log.info("migration.tenants", count=len(wanted))
        arguments = ["tenants", str(max(1, parallel))]
        async with aclosing(_child(direct_dsn, arguments, json.dumps(wanted))) as answers:
            async for line in answers:
                tenant = TenantId(line["tenant"])
                failure: str | None = line.get("failure")
                if failure is not None:
                    failed[tenant] = failure
                    log.error("migration.tenant_failed", tenant=tenant, reason=failure)
                elif line["changed"]:
                    changed.append(tenant)
                if on_tenant is not None:
                    on_tenant(tenant, failure)
    return Migrated(tenants=changed, failed=failed)


def chosen(
    existing: Sequence[TenantId], *, named: str | None = None, span: str | None = None
) -> list[TenantId]:
    """The tenants meant by ``--tenant A,B`` or ``--range a..m`` (ids that begin with m included); else all.

    Raises InvalidInput for a range that is none, UnknownTenant for a tenant that does not exist.
    """
    if named is not None:
        wanted = [parse_tenant(part.strip()) for part in named.split(",") if part.strip()]
        unknown = [tenant for tenant in wanted if tenant not in set(existing)]
        if unknown:
            raise UnknownTenant(f"no tenant {', '.join(unknown)}", remedy="`hive tenant list` names them")
        return wanted
    if span is not None:
        first, dots, last = span.partition("..")
        if not dots or (last and first > last):
            raise InvalidInput("--range", f"{span[:60]!r} is no range", remedy="as in a..m, m.. or ..c")
        return [each for each in existing if each >= first and (each <= last or each.startswith(last))]
    return list(existing)


async def _install(database: Database) -> bool:
    """The shared schema of an empty database, without Alembic."""
    try:
        async with database.transaction() as connection:
            await connection.execute(
                "select pg_advisory_xact_lock(hashtext('hive'), hashtext($1))", SHARED_SCHEMA
            )
            if not (await schema.pending(connection)).shared:
                return False
            await schema.install(connection, "shared", SHARED_SCHEMA)
            return True
    except asyncpg.DuplicateTableError as error:
        raise Conflict(
            f"schema {SHARED_SCHEMA} holds tables that are not hive's: {error}",
            remedy="give hive a database of its own",
        ) from error


@asynccontextmanager
async def _opened(dsn: str) -> AsyncGenerator[Database]:
    database = await Database.open(dsn, settings=Postgres(pool_size=1))
    try:
        yield database
    finally:
        await database.close()


async def _child(dsn: str, arguments: Sequence[str], given: str) -> AsyncGenerator[dict[str, Any]]:
    """Run the child; its answers as they come. Raises the error it reports. Ended when the caller goes."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HIVE_")}
    process = await anyio.open_process(
        [sys.executable, "-m", "hive.store.migration", *arguments],
        env={**environment, DSN_VARIABLE: dsn},
        stderr=subprocess.STDOUT,
    )
    noise: list[str] = []
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(given.encode())
        await process.stdin.aclose()
        rest = ""
        async for text in TextReceiveStream(process.stdout):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                answer = _answer(line)
                if answer is None:
                    noise.append(line)
                elif "error" in answer:
                    raise _reported(answer)
                else:
                    yield answer
        code = await process.wait()
        if code != 0:
            raise HiveError(f"the migration ended with code {code}: " + " ".join([*noise, rest])[-1000:])
    finally:
        with anyio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
            await process.aclose()


def _answer(line: str) -> dict[str, Any] | None:
    if not line.startswith('{"hive": '):
        return None
    return json.loads(line)["hive"]


def _reported(answer: Mapping[str, Any]) -> HiveError:
    if answer["error"] == StoreDown.code:
        return StoreDown(STORE, "migrating", answer["message"])
    kind = ConfigurationError if answer["error"] == ConfigurationError.code else HiveError
    return kind(answer["message"], remedy=answer["remedy"])


if __name__ == "__main__":
    from hive.store.migration_worker import main

    sys.exit(main(sys.argv[1:], os.environ.pop(DSN_VARIABLE, "")))
