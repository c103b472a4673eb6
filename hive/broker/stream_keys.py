"""Every Redis key of the stream broker. What each holds stands in ``lua/record.lua``."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Final

from hive.broker.wire import check_queue
from hive.ids import QueueName, TaskName, TenantId

GROUP: Final = "hive"
QUEUES: Final = "hive:stream:queues"
"""The set of all queues' names, so that a process can be cleaned up after on every queue."""

_NAMES: Final = (
    "lane:0",
    "lane:1",
    "lane:2",
    "queued:0",
    "queued:1",
    "queued:2",
    "later",
    "leases",
    "dead",
    "wake",
    "state",
    "record",
    "keys",
    "standing",
    "slots",
    "weights",
    "resources",
    "kinds",
    "progress",
    "expiries",
)
_PREFIXES: Final = {"line:": "zset", "kind:": "set", "blocked:": "zset"}


@dataclass(frozen=True, slots=True)
class QueueKeys:
    """The keys of one queue. They share a hash tag and so a cluster's slot."""

    queue: QueueName
    tag: str  # what every script is given: the begin of all names
    lanes: tuple[str, str, str]
    queued: tuple[str, str, str]
    dead: str
    wake: str
    state: str
    record: str
    standing: str
    kind: str  # a prefix
    made: Mapping[str, str]  # the prefixes of keys that scripts make -> what type these have
    all: tuple[str, ...]  # in the order that record.lua gives


@lru_cache(maxsize=10_000)
def keys_of(queue: QueueName) -> QueueKeys:
    """The keys of ``queue``; raises InvalidInput for a name that cannot be part of one."""
    check_queue(queue)
    tag = f"hive:{{{queue}}}:"
    names = tuple(tag + name for name in _NAMES)
    return QueueKeys(
        queue=queue,
        tag=tag,
        lanes=(names[0], names[1], names[2]),
        queued=(names[3], names[4], names[5]),
        dead=f"{tag}dead",
        wake=f"{tag}wake",
        state=f"{tag}state",
        record=f"{tag}record",
        standing=f"{tag}standing",
        kind=f"{tag}kind:",
        made={tag + prefix: kind for prefix, kind in _PREFIXES.items()},
        all=names,
    )


def dedup_key(tenant: TenantId | None, task: TaskName, key: str) -> bytes:
    """A key of one tenant and task, short whatever its own length."""
    whole = "\x00".join(("" if tenant is None else tenant, task, key))
    return blake2b(whole.encode(), digest_size=16).digest()


def resource_key(tenant: TenantId | None, resource: str) -> bytes:
    """A resource of one tenant, short whatever its own length; the tenant can be told from it."""
    digest = blake2b(resource.encode(), digest_size=16).hexdigest()
    return f"{tenant or ''}:{digest}".encode()
