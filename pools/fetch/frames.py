"""Frames: how parent and child cut a stream of bytes into messages.

    u32 length (big endian, of what follows) │ u8 kind │ JSON in UTF-8

Small on purpose: the parent decodes on its event loop, so a document travels as several frames (see
``coding``) instead of one that would hold the loop for as long as a large batch takes to decode.
Standard library only: children import it too.
"""

import json
import struct
from enum import IntEnum
from typing import Any, Final

Json = Any

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""A larger frame is an error: without a bound, four wrong bytes would make the reader wait for 4 GB."""

_HEAD: Final = struct.Struct(">IB")


class FrameError(Exception):
    """The other side wrote something that is no frame, or a frame that means nothing."""


class Kind(IntEnum):
    """What a frame's payload is. The numbers are the wire format."""

    REQUEST = 1  # parent → child: the first frame of a fetch child
    ANSWER = 2  # parent → child: to a QUESTION
    STOP = 3  # parent → child: end at the next checkpoint
    CALL = 4  # parent → child: the first frame of a task child

    DOCUMENT = 16  # child → parent: a document without its chunks
    CHUNKS = 17  # child → parent: chunks of the last DOCUMENT
    BATCH = 18  # child → parent: ends the batch that the DOCUMENTs before it belong to
    CHECKPOINT = 19
    QUESTION = 20
    PROGRESS = 21
    FAILURE = 22
    DONE = 23
    RETURNED = 24  # child → parent: the task's handler returned
    RAISED = 25  # child → parent: the task's handler raised


Framed = tuple[Kind, Json]


def pack(kind: Kind, payload: Json) -> bytes:
    """One frame. Raises FrameError when it would be larger than ``MAX_FRAME_BYTES``.

    ValueError and TypeError of ``payload``s that JSON cannot hold come through.
    """
    return pack_encoded(kind, encode(payload))


def encode(payload: Json) -> bytes:
    """``payload`` as JSON. NaN and infinities are refused (ValueError): Postgres would refuse them later."""
    return json.dumps(payload, separators=(",", ":"), allow_nan=False).encode()


def pack_encoded(kind: Kind, body: bytes) -> bytes:
    """One frame around JSON that is encoded already."""
    if len(body) + 1 > MAX_FRAME_BYTES:
        raise FrameError(f"a {kind.name} frame of {len(body)} bytes is larger than {MAX_FRAME_BYTES}")
    return _HEAD.pack(len(body) + 1, kind) + body


class Unpacker:
    """Cuts frames out of bytes as they arrive. Spent after a FrameError: the stream means nothing more."""

    __slots__ = ("_buffer", "_max_bytes")

    def __init__(self, max_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_bytes = max_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Take in what arrived."""
        self._buffer += data

    def next(self) -> Framed | None:
        """The next whole frame, or None until more bytes arrive. Raises FrameError."""
        buffer = self._buffer
        if len(buffer) < _HEAD.size:
            return None
        length, number = _HEAD.unpack_from(buffer)
        if not 1 <= length <= self._max_bytes:
            raise FrameError(f"a frame claims a length of {length} bytes")
        end = 4 + length
        if len(buffer) < end:
            return None
        body = bytes(memoryview(buffer)[_HEAD.size : end])
        del buffer[:end]
        try:
            kind = Kind(number)
        except ValueError:
            raise FrameError(f"a frame is of the unknown kind {number}") from None
        try:
            return kind, json.loads(body)
        except (ValueError, RecursionError) as error:
            raise FrameError(f"a {kind.name} frame is not JSON: {type(error).__name__}") from None

    @property
    def partial(self) -> bool:
        """Whether bytes of an unfinished frame are left: at the stream's end, that frame was cut off."""
        return bool(self._buffer)
