"""Schemas of pairs: two schemas in one, each with its length before it; their types stand in the pair's properties.

    data = [i32 length][key's definition][i32 length][value's definition]

A part whose type is not named is plain bytes, as it is for Pulsar. Pure.
"""

import struct
from typing import Final, NamedTuple

from broker.errors import IncompatibleSchema
from broker.schemas.schema import Schema, SchemaType

_LENGTH: Final = struct.Struct(">i")


class KeyValue(NamedTuple):
    """The schemas of a pair's parts."""

    key: Schema
    value: Schema


def split(schema: Schema) -> KeyValue:
    """The schemas of key and value.

    Raises:
        IncompatibleSchema: the data is not made of two parts, or a part has a type that no pair holds.
    """
    key_data, rest = _take(schema.data)
    value_data, rest = _take(rest)
    if rest:
        raise IncompatibleSchema(f"{len(rest)} bytes follow the two parts of a key-value schema")
    return KeyValue(_part(schema, "key", key_data), _part(schema, "value", value_data))


def _take(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < _LENGTH.size:
        raise IncompatibleSchema("a key-value schema ends before its parts do")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + max(length, 0)
    if end > len(data):
        raise IncompatibleSchema("a key-value schema ends before its parts do")
    return data[_LENGTH.size : end], data[end:]


def _part(schema: Schema, part: str, data: bytes) -> Schema:
    name = schema.properties.get(f"{part}.schema.type", "BYTES")
    if name == "BYTES":
        # Bytes have no number in the protocol; whatever is said of them is nothing.
        return Schema(SchemaType.NONE)
    kind = SchemaType.__members__.get(name)
    if kind is None or kind in {SchemaType.KEY_VALUE, SchemaType.AUTO_CONSUME}:
        raise IncompatibleSchema(f"a key-value schema has no {part} of type {name[:100]!r}")
    return Schema(kind, data)
