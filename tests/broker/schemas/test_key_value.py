"""Key-value schemas."""

import struct

import pytest

from broker.errors import IncompatibleSchema
from broker.schemas.key_value import split
from broker.schemas.schema import Schema, SchemaType


def pair(key_data: bytes, value_data: bytes, **types: str) -> Schema:
    data = struct.pack(">i", len(key_data)) + key_data + struct.pack(">i", len(value_data)) + value_data
    return Schema(SchemaType.KEY_VALUE, data, {f"{part}.schema.type": name for part, name in types.items()})


def test_a_pair_comes_apart() -> None:
    made = pair(b"", b"{}", key="INT32", value="JSON")
    assert split(made) == (Schema(SchemaType.INT32), Schema(SchemaType.JSON, b"{}"))


def test_parts_without_a_type_are_bytes() -> None:
    """This includes the length that Java writes for no definition."""
    data = struct.pack(">ii", -1, 0)
    assert split(Schema(SchemaType.KEY_VALUE, data)) == (Schema(SchemaType.NONE), Schema(SchemaType.NONE))


@pytest.mark.parametrize("data", [b"", b"\0\0\0", b"\0\0\0\5ab", b"\0\0\0\0", b"\0\0\0\0\0\0\0\0x"])
def test_data_that_is_no_pair(data: bytes) -> None:
    with pytest.raises(IncompatibleSchema):
        split(Schema(SchemaType.KEY_VALUE, data))


@pytest.mark.parametrize("name", ["KEY_VALUE", "AUTO_CONSUME", "UNHEARD"])
def test_types_that_no_pair_holds(name: str) -> None:
    with pytest.raises(IncompatibleSchema):
        split(pair(b"", b"", key=name, value="STRING"))
