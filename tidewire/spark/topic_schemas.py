"""Schemas of topics as brokers keep them, and the Spark types that they become in a data frame.

String, Json, Avro and the primitive types are supported. Values of other schemas (key and value in one, Protocol
Buffers) can be read as binary, without schema=auto.

Avro and Json schemas are both defined in Avro's language. Records become structs. A union of null and one other type
becomes that type. Other unions have no Spark type and are refused.
"""

import json
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidewire.protocol.refusals import TopicNotFound
from tidewire.spark.brokers import Brokers
from tidewire.spark.errors import UnreadableSchema
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

_S = pb.Schema


class TopicSchema(NamedTuple):
    """One version of a topic's schema."""

    kind: int
    definition: str
    """In Avro's language, for Json and Avro."""


PRIMITIVES: Final[dict[int, DataType]] = {
    _S.NoSchema: BinaryType(),
    _S.String: StringType(),
    _S.Bool: BooleanType(),
    _S.Int8: ByteType(),
    _S.Int16: ShortType(),
    _S.Int32: IntegerType(),
    _S.Int64: LongType(),
    _S.Float: FloatType(),
    _S.Double: DoubleType(),
    _S.Date: TimestampType(),
    _S.Timestamp: TimestampType(),
}
_AVRO: Final[dict[str, DataType]] = {
    "null": StringType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_LOGICAL: Final[dict[tuple[str, str], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
}
_DECIMAL: Final = "decimal"


def schema_of(brokers: Brokers, topic: str, version: bytes | None = None) -> TopicSchema:
    """A version of a topic's schema, by default the latest.

    Raises:
        UnreadableSchema: the topic has no schema.
        TidewireError: no broker could be asked, or it refuses.
    """
    owner = brokers.owner_of(topic)
    try:
        answer = owner.request(
            lambda request_id: commands.get_schema(request_id, topic, version=version), pb.CommandGetSchemaResponse
        )
    except TopicNotFound as refused:
        raise UnreadableSchema(
            f"{topic} has no schema: {refused}; read it without schema=auto, or after a producer has registered one"
        ) from refused
    return TopicSchema(answer.schema.type, answer.schema.schema_data.decode())


def common_schema(brokers: Brokers, topics: Iterable[str]) -> TopicSchema:
    """The latest schema of all topics, which must be the same.

    Raises:
        UnreadableSchema: the topics have several schemas, or none.
        TidewireError: no broker could be asked.
    """
    found: dict[TopicSchema, str] = {}
    for topic in topics:
        found.setdefault(schema_of(brokers, topic), topic)
    if len(found) > 1:
        first, second = list(found.values())[:2]
        raise UnreadableSchema(
            f"{first} and {second} have different schemas; read them separately, or without schema=auto"
        )
    if not found:
        raise UnreadableSchema("no topic matches, so there is no schema; read without schema=auto")
    return next(iter(found))


def spark_type(schema: TopicSchema) -> DataType:
    """The Spark type of a schema's values.

    Raises:
        UnreadableSchema: there is no such type.
    """
    primitive = PRIMITIVES.get(schema.kind)
    if primitive is not None:
        return primitive
    if schema.kind not in (_S.Json, _S.Avro):
        raise UnreadableSchema(
            f"schemas of type {_S.Type.Name(schema.kind)} are not decoded; read the topic without schema=auto"
        )
    try:
        return _avro_type(json.loads(schema.definition), {}, decoded_by_avro=schema.kind == _S.Avro)
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableSchema(f"the topic's schema cannot be parsed: {error!r}") from error


def _avro_type(schema: Any, named: dict[str, DataType], *, decoded_by_avro: bool) -> DataType:  # noqa: ANN401 - JSON
    go_on = partial(_avro_type, named=named, decoded_by_avro=decoded_by_avro)
    if isinstance(schema, list):
        branches = [branch for branch in schema if branch != "null"]
        if len(branches) != 1:
            raise UnreadableSchema(f"there is no column type for the union {json.dumps(schema)}")
        return go_on(branches[0])
    if isinstance(schema, str):
        known = _AVRO.get(schema) or named.get(schema) or named.get(schema.rpartition(".")[2])
        if known is None:
            raise UnreadableSchema(f"there is no column type for {schema!r}: it contains itself, or is not defined")
        return known
    kind = schema["type"]
    if isinstance(kind, (list, dict)):
        return go_on(kind)
    if kind in ("record", "error"):
        fields = [StructField(field["name"], go_on(field["type"]), nullable=True) for field in schema["fields"]]
        made: DataType = StructType(fields)
        named[schema["name"].rpartition(".")[2]] = made
        return made
    if kind == "array":
        return ArrayType(go_on(schema["items"]), containsNull=True)
    if kind == "map":
        return MapType(StringType(), go_on(schema["values"]), valueContainsNull=True)
    logical = schema.get("logicalType")
    # In JSON each library writes these in its own way, so the column has the underlying type.
    if decoded_by_avro and logical == _DECIMAL:
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if decoded_by_avro and (kind, logical) in _LOGICAL:
        return _LOGICAL[kind, logical]
    made = go_on(kind)
    if "name" in schema:
        named[schema["name"].rpartition(".")[2]] = made
    return made


def with_known_logical_types(definition: Any) -> Any:  # noqa: ANN401 - JSON
    """A definition in Avro's language without those logical types that have no column type.

    The Avro library would make Python objects of their values, but the column has the underlying type.
    """
    if isinstance(definition, list):
        return [with_known_logical_types(item) for item in definition]
    if not isinstance(definition, dict):
        return definition
    kind, logical = definition.get("type"), definition.get("logicalType", _DECIMAL)
    is_known = logical == _DECIMAL or (isinstance(kind, str) and (kind, logical) in _LOGICAL)
    return {
        name: with_known_logical_types(value) if name in ("type", "fields", "items", "values") else value
        for name, value in definition.items()
        if name != "logicalType" or is_known
    }
