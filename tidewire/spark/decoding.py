"""Decodes values to Arrow columns by their topic's schema.

Fixed-size primitive values are read as one array, JSON by Arrow's own reader, and Avro by fastavro. Each Avro value is
decoded with the schema it was written with, into the data frame's schema. A value that cannot be decoded fails the read
and is named in the error. A null in its place might be noticed only weeks later.
"""

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType

from tidewire.spark.avro import avro_library
from tidewire.spark.avro_evolution import with_logical_types_of
from tidewire.spark.errors import UnreadableMessage
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
        self._type = to_arrow_type(made, timezone="UTC")
        self._of_version = of_version
        self._avro_library: Any = avro_library() if schema.kind == _S.Avro else None
        self._reader = self._avro_schema(schema) if schema.kind == _S.Avro else None
        self._writers: dict[bytes, Any] = {}
        self._reads_json_by_arrow = pa.types.is_struct(self._type) and len(self._type) > 0 and _arrow_reads(self._type)

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
                return self._json(values)
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
            name = _S.Type.Name(kind)
            raise UnreadableMessage(f"a value does not match the topic's {name} schema: {error}") from error

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

    def _json(self, values: Values) -> pa.Array:
        if not self._reads_json_by_arrow:
            return pa.array([None if value is None else json.loads(value) for value in values], self._type)
        lines = [b"{}" if value is None else value.strip().replace(b"\n", b" ") for value in values]
        # So no value can continue into the next line: after a closing brace no opening one can follow.
        if not all(line[:1] == b"{" and line[-1:] == b"}" for line in lines):
            raise ValueError("it is not a JSON object")
        text = b"\n".join(lines)
        table = pyarrow.json.read_json(
            io.BytesIO(text),
            read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1),
            parse_options=pyarrow.json.ParseOptions(
                explicit_schema=pa.schema(_json_fields(self._type)), unexpected_field_behavior="ignore"
            ),
        )
        if table.num_rows != len(values):
            raise ValueError("it is more than one JSON object")
        columns = [table.column(field.name).combine_chunks().cast(field.type) for field in self._type]
        absent = pa.array([value is None for value in values])
        return pa.StructArray.from_arrays(columns, fields=list(self._type), mask=absent)

    def _avro(self, values: Values, version: bytes) -> pa.Array:
        writer = self._writers.get(version)
        if writer is None:
            written = self._of_version(version) if version else self._schema
            writer = self._writers[version] = self._avro_schema(written, self._schema)
        read = self._avro_library.schemaless_reader
        made = [None if value is None else read(io.BytesIO(value), writer, self._reader) for value in values]
        return pa.array(made, self._type)

    def _avro_schema(self, schema: TopicSchema, reader: TopicSchema | None = None) -> object:
        definition = with_known_logical_types(json.loads(schema.definition))
        if reader is not None:
            definition = with_logical_types_of(with_known_logical_types(json.loads(reader.definition)), definition)
        return self._avro_library.parse_schema(definition)


def _flag(value: bytes) -> bool:
    if len(value) != 1:
        raise ValueError("it does not have 1 byte")
    return value != b"\0"


def _json_fields(made: pa.DataType) -> list[pa.Field]:
    """The fields as Arrow's JSON reader knows them: it has no binary type."""
    return [pa.field(field.name, _json_type(field.type)) for field in made]


def _json_type(made: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(made):
        return pa.struct(_json_fields(made))
    if pa.types.is_list(made):
        return pa.list_(_json_type(made.value_type))
    return pa.string() if pa.types.is_binary(made) else made


def _arrow_reads(made: pa.DataType) -> bool:
    """Whether Arrow's JSON reader can produce the type; it has no maps."""
    if pa.types.is_struct(made):
        return all(_arrow_reads(field.type) for field in made)
    return not pa.types.is_map(made) and (not pa.types.is_list(made) or _arrow_reads(made.value_type))
