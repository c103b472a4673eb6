"""Which carrier has which queues."""

from hive.broker.ledger import Ledger
from hive.broker.port import Broker
from hive.broker.streams import Streams
from hive.ids import QueueName
from hive.settings import Settings


def carriers(
    settings: Settings, ledger: Ledger, streams: Streams | None
) -> dict[str, tuple[Broker, list[QueueName]]]:
    """Each carrier with its queues. Without Redis the ledger carries them all; pools of 0 slots count too,
    since another process may serve their queues."""
    on_ledger = [QueueName(queue) for pool in settings.pools.values() for queue in pool.ledger]
    on_stream = [QueueName(queue) for pool in settings.pools.values() for queue in pool.stream]
    if streams is None:
        return {"ledger": (ledger, [*on_ledger, *on_stream])}
    return {"ledger": (ledger, on_ledger), "stream": (streams, on_stream)}
