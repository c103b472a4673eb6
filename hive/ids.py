"""Identifiers. Each kind of id is its own type, so that one cannot be passed for another."""

import os
import time
from typing import NewType
from uuid import UUID

TenantId = NewType("TenantId", str)
QueueName = NewType("QueueName", str)
TaskName = NewType("TaskName", str)
MessageId = NewType("MessageId", UUID)  # of a job or a stream message alike
ProcessId = NewType("ProcessId", UUID)  # one boot of one hive
PairId = NewType("PairId", int)  # a connector with its credential: what people call "a connector"
AttemptId = NewType("AttemptId", int)
BatchId = NewType("BatchId", int)

DEFAULT_TENANT = TenantId("public")


def time_ordered() -> UUID:
    """A UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits.

    Ids made later sort later, to the millisecond, so that new rows go to the end of an index.
    """
    milliseconds = time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80 | random
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    return UUID(int=value)


def new_message_id() -> MessageId:
    """A fresh id for a message."""
    return MessageId(time_ordered())


def new_process_id() -> ProcessId:
    """A fresh id for one boot."""
    return ProcessId(time_ordered())
