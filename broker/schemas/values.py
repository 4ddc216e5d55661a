"""What a value says by its schema, in JSON, for people. Pure.

Only types whose values can be told without a generated class are decoded. Numbers stay numbers, times become text in
UTC (ISO 8601), and bytes become text in base64.
"""

import struct
from base64 import b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from broker.errors import IncompatibleSchema
from broker.schemas import avro_values, key_value
from broker.schemas.schema import Schema, SchemaType

_LENGTH: Final = struct.Struct(">i")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Undecodable(ValueError):
    """The bytes are no value of the schema, or the type is not decoded. The message is a sentence."""


class Decoder:
    """Gives the values of one schema in JSON. Made once for many values, because a definition may be long."""

    def __init__(self, schema: Schema) -> None:
        self._type = schema.type
        self._problem = f"Values of type {schema.type.name} are not decoded here."
        self._decode = _BY_TYPE.get(schema.type)
        make = _MADE.get(schema.type)
        if make is not None:
            try:
                self._decode = make(schema)
            except (IncompatibleSchema, LookupError, TypeError, ValueError):
                self._problem = _ODD

    def decoded(self, value: bytes) -> Any:  # noqa: ANN401 - JSON
        """Return a value in JSON.

        Raises:
            Undecodable
        """
        if self._decode is None:
            raise Undecodable(self._problem)
        try:
            return self._decode(value)
        except Undecodable:
            raise
        except (LookupError, TypeError) as problem:
            raise Undecodable(_ODD) from problem
        except (ValueError, OverflowError, RecursionError, struct.error) as problem:
            raise Undecodable(f"The bytes are no value of type {self._type.name}: {problem}.") from problem


_ODD: Final = "Its schema has a form that is not decoded here."


def _pairs(schema: Schema) -> Callable[[bytes], Any]:
    """Return what decodes pairs: `[i32 length][key][i32 length][value]`, or the value alone if the key is apart."""
    parts = key_value.split(schema)
    key, value = Decoder(parts.key), Decoder(parts.value)
    if schema.properties.get("kv.encoding.type") == "SEPARATED":
        return value.decoded

    def decoded(data: bytes) -> dict[str, Any]:
        key_bytes, rest = _taken(data)
        value_bytes, rest = _taken(rest)
        if rest:
            raise ValueError(f"{len(rest)} bytes are left behind it")
        return {
            "key": None if key_bytes is None else key.decoded(key_bytes),
            "value": None if value_bytes is None else value.decoded(value_bytes),
        }

    return decoded


def _taken(data: bytes) -> tuple[bytes | None, bytes]:
    """Return the first part of a pair, None if it is null, and what is behind it."""
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + max(length, 0)
    if end > len(data):
        raise ValueError("it ends in the middle of a part")
    return (None if length < 0 else data[_LENGTH.size : end]), data[end:]


def _unpacked(form: str) -> Callable[[bytes], Any]:
    packed = struct.Struct(form)
    return lambda value: packed.unpack(value)[0]


def _millis(value: bytes) -> str:
    return _time(milliseconds=struct.unpack(">q", value)[0])


def _instant(value: bytes) -> str:
    seconds, nanos = struct.unpack(">qi", value)
    return _time(seconds=seconds, microseconds=nanos // 1000)


def _local_date(value: bytes) -> str:
    return (EPOCH + timedelta(days=struct.unpack(">q", value)[0])).date().isoformat()


def _local_time(value: bytes) -> str:
    return (EPOCH + timedelta(microseconds=struct.unpack(">q", value)[0] // 1000)).time().isoformat()


def _local_date_time(value: bytes) -> str:
    return f"{_local_date(value[:8])}T{_local_time(value[8:])}"


def _time(**elapsed: float) -> str:
    return (EPOCH + timedelta(**elapsed)).isoformat().replace("+00:00", "Z")


_BY_TYPE: Final[dict[SchemaType, Callable[[bytes], Any]]] = {
    SchemaType.STRING: lambda value: value.decode(),
    SchemaType.JSON: orjson.loads,
    SchemaType.BOOLEAN: _unpacked(">?"),
    SchemaType.INT8: _unpacked(">b"),
    SchemaType.INT16: _unpacked(">h"),
    SchemaType.INT32: _unpacked(">i"),
    SchemaType.INT64: _unpacked(">q"),
    SchemaType.FLOAT: _unpacked(">f"),
    SchemaType.DOUBLE: _unpacked(">d"),
    SchemaType.DATE: _millis,
    SchemaType.TIME: _millis,
    SchemaType.TIMESTAMP: _millis,
    SchemaType.INSTANT: _instant,
    SchemaType.LOCAL_DATE: _local_date,
    SchemaType.LOCAL_TIME: _local_time,
    SchemaType.LOCAL_DATE_TIME: _local_date_time,
    SchemaType.NONE: lambda value: b64encode(value).decode(),
}

_MADE: Final[dict[SchemaType, Callable[[Schema], Callable[[bytes], Any]]]] = {
    SchemaType.AVRO: lambda schema: avro_values.decoder(schema.data),
    SchemaType.KEY_VALUE: _pairs,
}
