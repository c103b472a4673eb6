"""Every Redis key of the stream broker. What each holds stands in ``lua/record.lua``."""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from hive.broker.wire import check_queue
from hive.ids import MessageId, QueueName, TaskName, TenantId

GROUP: Final = "hive"
QUEUES: Final = "hive:stream:queues"
"""The set of all queues' names, so that a process can be cleaned up after on every queue."""


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue. They share a hash tag and so a cluster's slot."""

    queue: QueueName
    wake: str
    dead: str
    scripts: tuple[str, ...]  # KEYS of every script, in the order that record.lua gives

    def record(self, id: MessageId) -> str:
        """The hash beside a message."""
        return f"{self.scripts[9]}{id.hex}"


@lru_cache(maxsize=10_000)
def keys_of(queue: QueueName) -> QueueKeys:
    """The keys of ``queue``; raises InvalidInput for a name that cannot be part of one."""
    check_queue(queue)
    tag = f"hive:{{{queue}}}:"
    names = (
        "lane:0",
        "lane:1",
        "lane:2",
        "later",
        "leases",
        "dead",
        "wake",
        "fence",
        "counts",
        "record:",
        "key:",
    )
    return QueueKeys(
        queue=queue, wake=f"{tag}wake", dead=f"{tag}dead", scripts=tuple(tag + name for name in names)
    )


def dedup_key(tenant: TenantId | None, task: TaskName, key: str) -> str:
    """A key of one tenant and task, short whatever its own length."""
    whole = "\x00".join(("" if tenant is None else tenant, task, key))
    return blake2b(whole.encode(), digest_size=16).hexdigest()
