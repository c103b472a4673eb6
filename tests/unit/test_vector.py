"""Packed vectors: what a model server sends, and what Postgres takes."""

import math
import struct

import pytest

from hive.vector import Vector

NUMBERS = [1.0, -0.5, 0.0, 3.25]


def test_both_ways_in_give_the_same_bytes() -> None:
    sent = struct.pack("<4f", *NUMBERS)
    assert Vector.of_little_endian(sent) == Vector.of(NUMBERS)
    assert Vector.of(NUMBERS).packed == struct.pack(">4f", *NUMBERS)


def test_it_gives_back_what_it_was_made_of() -> None:
    vector = Vector.of(NUMBERS)
    assert vector.dimension == 4
    assert vector.numbers() == NUMBERS
    assert Vector.of([]).dimension == 0


def test_a_broken_length_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        Vector.of_little_endian(b"12345")


@pytest.mark.parametrize("value", ["1", None, [1.0]])
def test_what_is_no_number_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        Vector.of([value])  # pyright: ignore[reportArgumentType]


def test_what_float32_cannot_hold_is_infinite() -> None:
    assert math.isinf(Vector.of([1e300]).numbers()[0])
