"""The child of ``hive.store.migration``: runs Alembic. Nothing else imports it, since Alembic and SQLAlchemy
cost 30 MB. It dies with its parent; a transaction that was under way is rolled back.
"""

import asyncio
import ctypes
import json
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

import asyncpg
from alembic import command
from alembic.config import Config
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from hive.errors import ConfigurationError, HiveError, StoreDown
from hive.ids import TenantId
from hive.store.schema import MIGRATIONS, SetName, comment_of, head, with_privileges
from hive.tenancy import SHARED_SCHEMA, schema_of

_PR_SET_PDEATHSIG = 1
_FEW = 8  # a process of its own costs as much as this many tenants


def main(arguments: Sequence[str], dsn: str) -> int:
    """``shared``, or ``tenants PARALLEL`` with a JSON list of tenants as input. Answers on stdout."""
    _die_with_parent(os.getppid())
    try:
        match arguments:
            case ["shared"]:
                changed = asyncio.run(upgrade(dsn, "shared", SHARED_SCHEMA))
                _say({"changed": changed})
            case ["tenants", parallel]:
                tenants = [TenantId(each) for each in json.load(sys.stdin)]
                for answer in _all(dsn, tenants, int(parallel)):
                    _say(answer)
                    if "error" in answer:
                        return 1
            case _:
                sys.stderr.write("run by hive.store.migration alone\n")
                return 2
    except HiveError as error:
        _say(_described(error))
        return 1
    return 0


async def upgrade(dsn: str, name: SetName, schema: str) -> bool:
    """Bring ``schema`` to the set's newest revision in one transaction; False if it was there already.

    Two at once on one schema take turns (an advisory lock that ends with the transaction). A failure or a
    death in between leaves the schema as it was. Raises StoreDown, ConfigurationError, or HiveError with the
    reason the database gave.
    """

    async def connect() -> Any:
        # Not by SQLAlchemy's own reading of the address: it differs from asyncpg's for Unix sockets.
        return await asyncpg.connect(dsn, timeout=10, server_settings={"application_name": "hive migrate"})

    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            lock = f"select pg_advisory_xact_lock(hashtext('hive'), hashtext('{schema}'))"
            await connection.exec_driver_sql(lock)
            if await _comment(connection, schema) == comment_of(head(name)):
                return False
            await connection.run_sync(_run, name, schema)
            comment = f"comment on schema {schema} is '{comment_of(head(name))}'"
            await connection.exec_driver_sql(comment)
            return True
    except (OSError, TimeoutError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError) as error:
        raise StoreDown("postgres", "migrating", str(error)) from error
    except (asyncpg.InsufficientPrivilegeError, asyncpg.FeatureNotSupportedError) as error:
        with_privileges(error)
        raise
    except asyncpg.PostgresError as error:
        raise HiveError(f"schema {schema}: {error}") from error
    except DBAPIError as error:
        raise HiveError(f"schema {schema}: {error.orig}") from error
    finally:
        await engine.dispose()


async def _comment(connection: AsyncConnection, schema: str) -> str | None:
    # Not to_regnamespace(): it may answer from before the lock was waited for.
    query = f"select obj_description(oid, 'pg_namespace') from pg_namespace where nspname = '{schema}'"
    return (await connection.exec_driver_sql(query)).scalar()


def _run(connection: Any, name: SetName, schema: str) -> None:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS / name).replace("%", "%%"))
    config.attributes["connection"] = connection
    config.attributes["schema"] = schema
    command.upgrade(config, "head")


def _all(dsn: str, tenants: Sequence[TenantId], parallel: int) -> Iterable[dict[str, Any]]:
    if parallel == 1 or len(tenants) <= _FEW:
        yield from (_one(dsn, tenant) for tenant in tenants)
        return
    # Processes: Alembic keeps the migration that runs in a global variable.
    with ProcessPoolExecutor(
        max_workers=min(parallel, len(tenants)),
        mp_context=get_context("spawn"),
        initializer=_die_with_parent,
        initargs=(os.getpid(),),
    ) as processes:
        yield from processes.map(partial(_one, dsn), tenants)


def _one(dsn: str, tenant: TenantId) -> dict[str, Any]:
    try:
        return {"tenant": tenant, "changed": asyncio.run(upgrade(dsn, "tenant", schema_of(tenant)))}
    except (StoreDown, ConfigurationError) as error:
        return _described(error)  # concerns all tenants
    except HiveError as error:
        return {"tenant": tenant, "failure": error.message}


def _described(error: HiveError) -> dict[str, Any]:
    return {"error": error.code, "message": error.message, "remedy": error.remedy}


def _die_with_parent(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"hive": answer}) + "\n")
    sys.stdout.flush()
