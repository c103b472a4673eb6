"""What hive and its zygote say to each other: one JSON object a packet, over a socket pair that keeps
packets apart.

    hive ─▶ zygote   path · spawn (with the child's socket) · ping
    hive ◀─ zygote   pong · spawned · refused · exited

No credential passes here: a child gets its request over its own socket. Standard library only, and little of
it: an idle zygote should weigh nothing.
"""

import json
import signal
from typing import Any, Final, NamedTuple

from pools.fetch.hardening import User

MAX_PACKET_BYTES: Final = 64 * 1024

SHRUGGED_OFF: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals sent to a whole service or terminal: when the zygote ends is for hive alone to say."""

ROLES: Final = {"fetch": "pools.fetch.child", "task": "pools.fetch.task_child"}


class Birth(NamedTuple):
    """How a child is to be born.

    ``user``: whom to become, None to stay. ``max_data_bytes``: RLIMIT_DATA. ``hidden``: folders it must never
    read, whatever else it may. ``preload``: have the zygote import the parsing libraries first, once, so
    that all later children share them.
    """

    role: str
    user: User | None = None
    max_data_bytes: int | None = None
    hidden: tuple[str, ...] = ()
    preload: bool = False


def birth_message(number: int, birth: Birth) -> dict[str, Any]:
    """The spawn packet for the child that hive calls ``number``."""
    return {"op": "spawn", "id": number, **birth._asdict()}


def read_birth(message: dict[str, Any]) -> Birth:
    """The other side of ``birth_message``."""
    user = message["user"]
    return Birth(
        role=message["role"],
        user=None if user is None else User(*user),
        max_data_bytes=message["max_data_bytes"],
        hidden=tuple(message["hidden"]),
        preload=message["preload"],
    )


def encode_packet(message: dict[str, Any]) -> bytes:
    """One packet. Raises ValueError when it is larger than ``MAX_PACKET_BYTES``."""
    packet = json.dumps(message, separators=(",", ":")).encode()
    if len(packet) > MAX_PACKET_BYTES:
        raise ValueError(f"a packet of {len(packet)} bytes is larger than {MAX_PACKET_BYTES}")
    return packet


def decode_packet(packet: bytes) -> dict[str, Any]:
    """The other side of ``encode_packet``."""
    return json.loads(packet)
