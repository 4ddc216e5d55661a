"""Decodes values to Arrow columns by their topic's schema.

Fixed-size primitive values are read as one array, JSON by Arrow's own reader, and Avro by fastavro. Each JSON and Avro
value is decoded with the schema it was written with, into the data frame's schema. A value that cannot be decoded fails
the read and is named in the error. A null in its place might be noticed only weeks later.
"""

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.types import DataType

from tidewire.spark.avro import avro_library
from tidewire.spark.avro_evolution import with_logical_types_of
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.json_values import JsonReading
from tidewire.spark.pyspark_versions import arrow_type
from tidewire.spark.resolution import Tree, Unresolvable, resolved
from tidewire.spark.topic_schemas import TopicSchema, with_known_logical_types
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

Values = Sequence[bytes | None]
SchemaOfVersion = Callable[[bytes], TopicSchema]

_S = pb.Schema
# Big-endian, as Pulsar's clients write them.
_FIXED: Final[dict[int, str]] = {
    _S.Int8: ">i1",
    _S.Int16: ">i2",
    _S.Int32: ">i4",
    _S.Int64: ">i8",
    _S.Float: ">f4",
    _S.Double: ">f8",
    _S.Date: ">i8",
    _S.Timestamp: ">i8",
}
_US_PER_MS: Final = 1000
_TIME_MS_MAX: Final = (2**63 - 1) // _US_PER_MS


class Decoder:
    """Builds the `value` column of messages."""

    def __init__(self, schema: TopicSchema, made: DataType, of_version: SchemaOfVersion) -> None:
        """Prepare to decode.

        Args:
            schema: the schema that the data frame's column was made from.
            made: that column's type.
            of_version: finds the schema that a message was written with, by the version in its metadata.

        Raises:
            LibraryMissing: it is an Avro schema, and this Python has no fastavro.
        """
        self._schema = schema
        self._type = arrow_type(made)
        self._of_version = of_version
        self._avro_library: Any = avro_library() if schema.kind == _S.Avro else None
        self._reader = self._avro_schema(schema) if schema.kind == _S.Avro else None
        self._writers: dict[bytes, Any] = {}
        self._readings: dict[bytes, JsonReading] = {}

    def column(self, values: Values, version: bytes) -> pa.Array:
        """The column of values that were all written with this version; null for a message without a value.

        Raises:
            UnreadableMessage: a value does not match the schema.
        """
        kind = self._schema.kind
        try:
            if kind == _S.Avro:
                return self._avro(values, version)
            if kind == _S.Json:
                return self._json(values, version)
            if kind == _S.String:
                return pa.array(values, pa.binary()).cast(pa.string())
            if kind == _S.Bool:
                return pa.array([None if value is None else _flag(value) for value in values], pa.bool_())
            if kind == _S.NoSchema:
                return pa.array(values, pa.binary())
            return self._fixed(values, np.dtype(_FIXED[kind]))
        except UnreadableMessage:
            raise
        # The libraries raise all kinds of errors for bytes that are not theirs.
        except Exception as error:
            if kind == _S.Avro:
                # Two versions that do not fit are a reason of their own, which the library gives without names.
                self._resolved(version)
            name = _S.Type.Name(kind)
            raise UnreadableMessage(
                f"a value does not match the topic's {name} schema: {error}; read the topic without schema=auto, or"
                " from a position behind it"
            ) from error

    def _fixed(self, values: Values, item: np.dtype[Any]) -> pa.Array:
        absent = np.array([value is None for value in values])
        filler = bytes(item.itemsize)
        if any(value is not None and len(value) != item.itemsize for value in values):
            raise ValueError(f"it does not have {item.itemsize} bytes")
        read = np.frombuffer(b"".join(filler if value is None else value for value in values), item)
        native = read.astype(item.newbyteorder("="))
        if pa.types.is_timestamp(self._type):
            beyond = native[(native > _TIME_MS_MAX) | (native < -_TIME_MS_MAX)]
            if beyond.size:
                raise ValueError(f"a timestamp cannot hold the time {beyond[0]}")
            return pa.array(native * _US_PER_MS, pa.int64(), mask=absent).view(self._type)
        return pa.array(native, self._type, mask=absent)

    def _json(self, values: Values, version: bytes) -> pa.Array:
        reading = self._readings.get(version)
        if reading is None:
            reading = self._readings[version] = JsonReading(self._resolved(version), self._type)
        return reading.column(values)

    def _resolved(self, version: bytes) -> Tree:
        """How values of this version become the column's.

        Raises:
            UnreadableMessage: they do not.
        """
        try:
            return resolved(_definition(self._written(version)), _definition(self._schema))
        except Unresolvable as error:
            where = f"field {error.field}" if error.field else "the value"
            newer = f"version {_number(self._schema.version)}" if self._schema.version else "the version"
            raise UnreadableMessage(
                f"version {_number(version)} of the topic's schema, which wrote the value, defines {where} as"
                f" {error.written}, and {newer}, which the data frame has, as {error.read}; read the topic without"
                " schema=auto"
            ) from error

    def _written(self, version: bytes) -> TopicSchema:
        return self._schema if version in (b"", self._schema.version) else self._of_version(version)

    def _avro(self, values: Values, version: bytes) -> pa.Array:
        writer = self._writers.get(version)
        if writer is None:
            writer = self._writers[version] = self._avro_schema(self._written(version), self._schema)
        made = [None if value is None else self._record(value, writer) for value in values]
        return pa.array(made, self._type)

    def _record(self, value: bytes, writer: object) -> object:
        stream = io.BytesIO(value)
        record: object = self._avro_library.schemaless_reader(stream, writer, self._reader)
        left = len(value) - stream.tell()
        if left:
            # Almost any bytes begin with some record. So bytes behind it show that somebody wrote without the schema.
            raise ValueError(f"{left} bytes are left behind it")
        return record

    def _avro_schema(self, schema: TopicSchema, reader: TopicSchema | None = None) -> object:
        definition = with_known_logical_types(json.loads(schema.definition))
        if reader is not None:
            definition = with_logical_types_of(with_known_logical_types(json.loads(reader.definition)), definition)
        return self._avro_library.parse_schema(definition)


def _flag(value: bytes) -> bool:
    if len(value) != 1:
        raise ValueError("it does not have 1 byte")
    return value != b"\0"


def _number(version: bytes) -> int:
    return int.from_bytes(version, "big")


def _definition(schema: TopicSchema) -> object:
    known: object = with_known_logical_types(json.loads(schema.definition), in_json=schema.kind == _S.Json)
    return known
