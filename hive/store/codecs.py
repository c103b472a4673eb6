"""How values of Postgres' own kinds travel on a connection: ``jsonb`` as Python values, ``vector`` packed.

Both in binary. asyncpg's default for a vector is its text, and an array of numbers it encodes one by one.
"""

import json
import struct
from typing import Any, Final

from hive.tenancy import EXTENSION_SCHEMA
from hive.vector import Vector

_VECTOR_HEAD: Final = struct.Struct(">hh")  # the dimension, and a field that pgvector keeps for later


async def teach_json(connection: Any) -> None:
    """Teach an asyncpg connection ``jsonb``."""
    # Binary, since COPY knows no other: a version byte, then the text.
    await connection.set_type_codec(
        "jsonb", schema="pg_catalog", format="binary", encoder=_encode_json, decoder=_decode_json
    )


async def teach_vectors(connection: Any) -> bool:
    """Teach it ``hive_ext.vector``; False where the database has no such type, or not yet."""
    try:
        await connection.set_type_codec(
            "vector",
            schema=EXTENSION_SCHEMA,
            format="binary",
            encoder=_encode_vector,
            decoder=_decode_vector,
        )
    except ValueError:  # what asyncpg says of an unknown type
        return False
    return True


def _encode_json(value: Any) -> bytes:
    return b"\x01" + json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _decode_json(data: bytes) -> Any:
    return json.loads(data[1:])


def _encode_vector(value: Vector) -> bytes:
    return _VECTOR_HEAD.pack(value.dimension, 0) + value.packed


def _decode_vector(data: bytes) -> Vector:
    return Vector(data[_VECTOR_HEAD.size :])
