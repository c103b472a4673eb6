"""The tick that keeps connectors running: it puts attempts right, starts due ones and finishes removals."""

from typing import Final

from hive.client import Client
from hive.context import Stores
from hive.errors import Conflict, NotFound
from hive.ids import PairId, TenantId
from hive.ingest.attempts import Attempts
from hive.ingest.reconciliation import Reconciliation
from hive.ingest.removal import Removal
from hive.ingest.rest import may_rest, rest
from hive.logger import get_logger

log = get_logger(__name__)

STARTS_AT_ONCE: Final = 200
FIRST_RETRY_SECONDS: Final = 60
LONGEST_RETRY_SECONDS: Final = 6 * 3600


class IndexingTick:
    """One tenant's round. Two at once, or one twice, start nothing twice: the attempt's row decides."""

    def __init__(self, stores: Stores, attempts: Attempts) -> None:
        self._stores = stores
        self._attempts = attempts
        self._reconciliation = Reconciliation(stores, attempts)
        self._removal = Removal(stores, attempts)

    async def run_once(self, tenant: TenantId, *, client: Client) -> int:
        """Returns how many attempts were started."""
        await self._reconciliation.run(tenant, client=client)
        async with self._stores.transaction(tenant) as connection:
            due = await connection.fetch(_DUE, FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS, STARTS_AT_ONCE)
            removing = await connection.fetch(
                "select id from connector_credential_pair where state = 'removing' order by id limit 10"
            )
            idle = not due and not removing and await may_rest(connection, tenant)
        started = 0
        for row in due:
            try:
                started += (await self._attempts.start(tenant, PairId(row["id"]), client=client)).created
            except (Conflict, NotFound) as refusal:
                log.info("attempt.not_started", tenant=tenant, pair=row["id"], cause=refusal.code)
        for row in removing:
            await self._removal.run(tenant, PairId(row["id"]), client=client)
        if idle:
            await rest(self._stores, tenant)
        return started


# A connector is due when somebody asked since its last run began, when that run was interrupted, or when it
# ended `refresh_seconds` ago. After failures in a row the wait doubles, from a minute to six hours; the first
# interruption is followed up at once. `bad` counts the runs since the last good one, ten at the most.
_DUE = """
select p.id
from connector_credential_pair p
left join lateral (
    select id, status, created_at, finished_at from index_attempt
    where pair = p.id and kind = 'full' order by id desc limit 1
) last on true
cross join lateral (
    select count(*) as bad from (
        select status, bool_or(status not in ('failed', 'interrupted')) over (order by id desc) as good_seen
        from (select id, status from index_attempt where pair = p.id and kind = 'full'
              order by id desc limit 10) as newest
    ) as runs where not good_seen
) as history
cross join lateral (
    select least($2::float8, $1::float8 * 2 ^ greatest(history.bad - 1, 0)) as backoff,
           extract(epoch from now() - last.finished_at) as age
) as wait
where p.state = 'active'
  and (last.id is null or last.finished_at is not null)
  and case
        when p.run_requested_at is not null
             and (last.id is null or p.run_requested_at > last.created_at) then true
        when last.id is null then p.refresh_seconds > 0
        when last.status = 'interrupted' then history.bad = 1 or wait.age >= wait.backoff
        when p.refresh_seconds = 0 then false
        when last.status = 'failed' then wait.age >= greatest(p.refresh_seconds, wait.backoff)
        else wait.age >= p.refresh_seconds
      end
order by last.finished_at nulls first, p.id
limit $3
"""
