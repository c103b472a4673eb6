"""Holding one's own job inside a transaction that does not settle it."""

from hive.broker.port import Delivery
from hive.errors import LeaseLost
from hive.store.connection import Connection


async def hold(connection: Connection, delivery: Delivery) -> None:
    """Lock the job's row until the transaction ends; raises LeaseLost if this delivery is not its newest.

    Nobody can claim the job while the lock is held, so what the transaction writes cannot be stale. Take this
    lock before any other: jobs first, then documents, then the attempt is the order everywhere.
    """
    held = await connection.fetchval(
        "select true from hive.job where id = $1 and fence = $2 and owner = $3 and state = 'running' "
        "for no key update",
        delivery.id,
        delivery.fence,
        delivery.owner,
    )
    if not held:
        raise LeaseLost(f"job {delivery.id} was taken over")
