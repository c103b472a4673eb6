"""Identifiers. Each kind of id is its own type, so that one cannot be passed for another."""

import os
import random
import time
from typing import Final, NewType
from uuid import UUID, SafeUUID

TenantId = NewType("TenantId", str)
QueueName = NewType("QueueName", str)
TaskName = NewType("TaskName", str)
MessageId = NewType("MessageId", UUID)  # of a job or a stream message alike
ProcessId = NewType("ProcessId", UUID)  # one boot of one hive
PairId = NewType("PairId", int)  # a connector with its credential: what people call "a connector"
AttemptId = NewType("AttemptId", int)
BatchId = NewType("BatchId", int)

DEFAULT_TENANT = TenantId("public")


_RANDOM: Final = random.Random()  # our own: whoever seeds the module's would have ids twice
_random_bits: Final = _RANDOM.getrandbits
os.register_at_fork(after_in_child=_RANDOM.seed)  # else a child would draw its parent's ids

_FREE: Final = ~(0xF << 76 | 0x3 << 62)
_VERSION_7: Final = 0x7 << 76 | 0x2 << 62


def time_ordered() -> UUID:
    """A UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits.

    Ids made later sort later, to the millisecond, so that new rows go to the end of an index. They are no
    secrets: asking the system for each one's random bits costs more than all the rest.
    """
    milliseconds = time.clock_gettime_ns(time.CLOCK_REALTIME) // 1_000_000
    made = object.__new__(UUID)  # its constructor looks at six ways to make one, for twice the time
    object.__setattr__(made, "int", (milliseconds << 80 | _random_bits(80)) & _FREE | _VERSION_7)
    object.__setattr__(made, "is_safe", SafeUUID.unknown)
    return made


def new_message_id() -> MessageId:
    """A fresh id for a message."""
    return MessageId(time_ordered())


def new_process_id() -> ProcessId:
    """A fresh id for one boot."""
    return ProcessId(time_ordered())
