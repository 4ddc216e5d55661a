"""Schemas of key-value pairs: two definitions with their lengths; the pair's properties have their types. Pure.

    data = [i32 length][key's definition][i32 length][value's definition]

As in Pulsar, a part without a type is plain bytes.
"""

import struct
from typing import Final, NamedTuple

from broker.errors import IncompatibleSchema
from broker.schemas.schema import Schema, SchemaType

_LENGTH: Final = struct.Struct(">i")


class KeyValue(NamedTuple):
    """The schemas of a pair's key and value."""

    key: Schema
    value: Schema


def parts_of(data: bytes) -> tuple[bytes, bytes]:
    """Return the definitions of key and value.

    Raises:
        IncompatibleSchema: the data does not have two parts.
    """
    key_data, rest = _take(data)
    value_data, rest = _take(rest)
    if rest:
        raise IncompatibleSchema(f"The key-value schema has {len(rest)} bytes after its two parts.")
    return key_data, value_data


def joined(key_data: bytes, value_data: bytes) -> bytes:
    """Return the data of a pair with these definitions."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in (key_data, value_data))


def split(schema: Schema) -> KeyValue:
    """Split a pair's schema into those of key and value.

    Raises:
        IncompatibleSchema: the data does not have two parts, or a part's type is not allowed in a pair.
    """
    key_data, value_data = parts_of(schema.data)
    return KeyValue(_part(schema, "key", key_data), _part(schema, "value", value_data))


def _take(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < _LENGTH.size:
        raise IncompatibleSchema("The key-value schema ends in the middle of a part.")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + max(length, 0)
    if end > len(data):
        raise IncompatibleSchema("The key-value schema ends in the middle of a part.")
    return data[_LENGTH.size : end], data[end:]


def _part(schema: Schema, part: str, data: bytes) -> Schema:
    name = schema.properties.get(f"{part}.schema.type", "BYTES")
    if name == "BYTES":
        # The type bytes has no number in the protocol, and its definition has no meaning.
        return Schema(SchemaType.NONE)
    kind = SchemaType.__members__.get(name)
    if kind is None or kind in {SchemaType.KEY_VALUE, SchemaType.AUTO_CONSUME}:
        raise IncompatibleSchema(f"The {part} of a key-value schema cannot have type {name[:100]!r}.")
    return Schema(kind, data)
