"""Which body the leader lease has: Redis where it is switched on, else Postgres."""

from hive.ids import ProcessId
from hive.locks.port import LeaderLease
from hive.locks.postgres import PostgresLease
from hive.locks.redis import RedisLease
from hive.settings import Settings
from supervisor.instance import Instance
from supervisor.stores import Stores


async def open_lease(
    settings: Settings, stores: Stores, *, instance: Instance, process: ProcessId
) -> LeaderLease:
    """The lease on a connection of its own. Raises ``StoreDown``."""
    ttl_seconds = settings.leases.leader_seconds
    if stores.redis is not None:
        return await RedisLease.open(
            stores.redis_url,
            settings.redis,
            stores.database,
            instance=instance.id,
            process=process,
            ttl_seconds=ttl_seconds,
        )
    return await PostgresLease.open(
        stores.database.dsn,
        settings.postgres,
        instance=instance.id,
        process=process,
        ttl_seconds=ttl_seconds,
    )
