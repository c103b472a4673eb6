"""hive: background work for knowledge products. What a user imports stands here."""

from hive.backoff import Retry
from hive.broker.port import Lane
from hive.client import Client
from hive.context import Context
from hive.errors import NeedsOperator, Permanent, Transient
from hive.providers import Throttled
from hive.tasks import task

__all__ = [
    "Client",
    "Context",
    "Lane",
    "NeedsOperator",
    "Permanent",
    "Retry",
    "Throttled",
    "Transient",
    "task",
]
