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
    version: bytes = b""
    """The broker's name of the version; empty if it is not known, or not the same in all topics."""


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
_LOGICAL: Final[dict[tuple[object, object], DataType]] = {
    ("int", "date"): DateType(),
    ("long", "timestamp-millis"): TimestampType(),
    ("long", "timestamp-micros"): TimestampType(),
}
_DECIMAL: Final = "decimal"
_DECIMAL_IN_AVRO: Final = ("bytes", "fixed")
_DECIMAL_IN_JSON: Final = (*_DECIMAL_IN_AVRO, "string")
"""JSON holds a decimal as text, so its definition may say so (`values.py`)."""


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
            f"{topic} does not exist or has no schema; read it without schema=auto, or after a producer has "
            "registered one"
        ) from refused
    return TopicSchema(answer.schema.type, answer.schema.schema_data.decode(), answer.schema_version)


def common_schema(brokers: Brokers, topics: Iterable[str]) -> TopicSchema:
    """The latest schema of all topics, which must be the same.

    Raises:
        UnreadableSchema: the topics have several schemas, or none.
        TidewireError: no broker could be asked.
    """
    common, first = None, ""
    for topic in topics:
        found = schema_of(brokers, topic)
        if common is None:
            common, first = found, topic
        elif found[:2] != common[:2]:
            raise UnreadableSchema(
                f"{first} and {topic} have different schemas; read them separately, or without schema=auto"
            )
        elif found.version != common.version:
            common = common._replace(version=b"")
    if common is None:
        raise UnreadableSchema("no topic matches, so there is no schema; read without schema=auto")
    return common


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
        return _avro_type(json.loads(schema.definition), {}, in_json=schema.kind == _S.Json)
    except (ValueError, KeyError, TypeError) as error:
        raise UnreadableSchema(f"the topic's schema cannot be parsed: {error!r}") from error


def _avro_type(schema: Any, named: dict[str, DataType], *, in_json: bool) -> DataType:  # noqa: ANN401 - JSON
    go_on = partial(_avro_type, named=named, in_json=in_json)
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
    if _is_known(kind, schema.get("logicalType"), in_json=in_json):
        made = _LOGICAL.get((kind, schema["logicalType"])) or DecimalType(schema["precision"], schema.get("scale", 0))
    else:
        made = go_on(kind)
    if "name" in schema:
        named[schema["name"].rpartition(".")[2]] = made
    return made


def with_known_logical_types(definition: Any, *, in_json: bool = False) -> Any:  # noqa: ANN401 - JSON
    """A definition in Avro's language without those logical types that have no column type.

    The Avro library would make Python objects of their values, but the column has the underlying type.
    """
    go_on = partial(with_known_logical_types, in_json=in_json)
    if isinstance(definition, list):
        return [go_on(item) for item in definition]
    if not isinstance(definition, dict):
        return definition
    is_known = _is_known(definition.get("type"), definition.get("logicalType"), in_json=in_json)
    return {
        name: go_on(value) if name in ("type", "fields", "items", "values") else value
        for name, value in definition.items()
        if name != "logicalType" or is_known
    }


def _is_known(kind: object, logical: object, *, in_json: bool) -> bool:
    """Whether a logical type has a column type of its own."""
    if logical == _DECIMAL:
        return kind in (_DECIMAL_IN_JSON if in_json else _DECIMAL_IN_AVRO)
    return isinstance(kind, str) and (kind, logical) in _LOGICAL
