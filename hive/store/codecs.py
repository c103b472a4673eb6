"""How values of Postgres' own kinds travel on a connection: ``jsonb`` as Python values, ``vector`` packed.

Both in binary. asyncpg's default for a vector is its text, and an array of numbers it encodes one by one.
"""

import json
import struct
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, Final

import asyncpg

from hive.tenancy import EXTENSION_SCHEMA
from hive.vector import Vector

_VECTOR_HEAD: Final = struct.Struct(">hh")  # the dimension, and a field that pgvector keeps for later
# Postgres' own arrays by their oids, the same in every database: the oid and name of what they hold.
_ARRAYS: Final = {
    1000: (16, "bool"),
    1001: (17, "bytea"),
    1005: (21, "int2"),
    1007: (23, "int4"),
    1016: (20, "int8"),
    1022: (701, "float8"),
    1185: (1184, "timestamptz"),
    2951: (2950, "uuid"),
}
_UNASKED: Final = SimpleNamespace(name="none")  # to asyncpg, whether a nameless statement was lost meanwhile


class ArraysKnown(asyncpg.Connection):
    """A connection that need not ask the server what its arrays hold.

    asyncpg asks once for each connection, by a query whose planning alone takes 8 ms: most of what its first
    publish or claim took.
    """

    async def _introspect_types(self, typeoids: Collection[int], timeout: float | None) -> tuple[Any, Any]:
        """asyncpg's own. Where it has none of this name, nobody calls ours, and all is as slow as it was."""
        if not _ARRAYS.keys() >= set(typeoids):
            return await super()._introspect_types(typeoids, timeout)
        return [_array(oid, *_ARRAYS[oid]) for oid in typeoids], _UNASKED


def _array(oid: int, element: int, name: str) -> dict[str, Any]:
    """What asyncpg's query would say."""
    rest = dict.fromkeys(("range_subtype", "attrtypoids", "attrnames", "basetype"))
    held = {"elemtype": element, "elemtype_name": name, "elemdelim": b","}
    return {"oid": oid, "ns": "pg_catalog", "name": f"_{name}", "kind": b"b", **held, **rest}


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
