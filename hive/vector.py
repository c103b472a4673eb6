"""An embedding vector, packed as Postgres takes it: from the model server to the index it is never a list.

A batch holds thousands of vectors of hundreds of numbers each. As Python floats they would cost the loop a
tenth of a millisecond a chunk, and thirty times the memory.
"""

import array
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

FLOAT_BYTES: Final = 4
_LITTLE: Final = sys.byteorder == "little"


@dataclass(frozen=True, slots=True)
class Vector:
    """``packed``: float32, big endian. Not iterable: an array of vectors is no array of numbers."""

    packed: bytes

    @classmethod
    def of(cls, numbers: Iterable[float]) -> "Vector":
        """Pack ``numbers``; raises TypeError for what is none. What float32 cannot hold becomes infinite."""
        return cls(_turned(array.array("f", numbers), turn=_LITTLE))

    @classmethod
    def of_little_endian(cls, data: bytes) -> "Vector":
        """Take float32 in little endian, as model servers send it; raises ValueError for a broken length."""
        floats = array.array("f")
        floats.frombytes(data)
        # Whatever the machine's own order is, these bytes are in the other one than Postgres'.
        return cls(_turned(floats, turn=True))

    @property
    def dimension(self) -> int:
        return len(self.packed) // FLOAT_BYTES

    def numbers(self) -> list[float]:
        """The numbers, for whoever has to look at them."""
        floats = array.array("f", self.packed)
        if _LITTLE:
            floats.byteswap()
        return floats.tolist()


def _turned(floats: "array.array[float]", *, turn: bool) -> bytes:
    if turn:
        floats.byteswap()
    return floats.tobytes()
