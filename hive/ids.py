"""Identifiers. Each kind of id is its own type, so that one cannot be passed for another."""

import os
import random
import time
from collections.abc import Callable
from typing import Final, NewType, cast
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
_now: Final = time.time_ns  # a name of the module is found in half of the time
_new: Final = object.__new__
_set_int: Final[Callable[[UUID, int], None]] = vars(UUID)["int"].__set__
_set_safety: Final[Callable[[UUID, SafeUUID], None]] = vars(UUID)["is_safe"].__set__
os.register_at_fork(after_in_child=_RANDOM.seed)  # else a child would draw its parent's ids

_UNKNOWN: Final = SafeUUID.unknown
_FREE: Final = ~(0xF << 76 | 0x3 << 62)
_VERSION_7: Final = 0x7 << 76 | 0x2 << 62


def time_ordered() -> UUID:
    """A UUID of version 7 (RFC 9562): 48 bits of Unix milliseconds, then 74 random bits.

    Ids made later sort later, to the millisecond, so that new rows go to the end of an index. They are no
    secrets: asking the system for each one's random bits costs more than all the rest.
    """
    made = _new(UUID)  # its constructor looks at six ways to make one, for four times the time
    _set_int(made, (_now() // 1_000_000 << 80 | _random_bits(80)) & _FREE | _VERSION_7)
    _set_safety(made, _UNKNOWN)
    return made


# The same under names with a type: a function around it would take half as long again.
new_message_id: Final = cast("Callable[[], MessageId]", time_ordered)
new_process_id: Final = cast("Callable[[], ProcessId]", time_ordered)
