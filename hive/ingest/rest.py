"""Tenants without work rest: the mark that beat goes by when it passes over them.

    a connector is added or changed, an attempt begins ─▶ working   (trigger hive.tenant_works, NOTIFY)
    a tick finds paused connectors at most, and no attempt under way ─▶ resting

A wrong mark is no catastrophe: beat sends every tenant a tick within 20 minutes. It cannot be wrong by a
race: both sides lock the tenant's row before they look. A tenant whose tables an older hive made, without the
trigger, never rests.
"""

from hive.context import Stores
from hive.ids import TenantId
from hive.store.connection import Connection

_IDLE = """
    working
    and not exists (select from connector_credential_pair where state <> 'paused')
    and not exists (select from index_attempt where finished_at is null)
    and exists (
        select from pg_trigger where tgrelid = 'connector_credential_pair'::regclass and tgname = 'works'
    )
"""


async def may_rest(connection: Connection, tenant: TenantId) -> bool:
    """Whether ``rest`` would change anything, as far as this transaction sees; locks nothing."""
    return bool(await connection.fetchval(f"select {_IDLE} from hive.tenant where id = $1", tenant))


async def rest(stores: Stores, tenant: TenantId) -> None:
    """Take the mark from the tenant, unless it has work after all."""
    async with stores.transaction(tenant) as connection:
        await connection.execute("select from hive.tenant where id = $1 for no key update", tenant)
        # A statement of its own: only one that begins with the lock in hand sees what was committed before.
        await connection.execute(f"update hive.tenant set working = false where id = $1 and {_IDLE}", tenant)
