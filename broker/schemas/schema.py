"""A schema that a producer or consumer declares: its type, its definition, and properties for other clients. Pure.

The types and their numbers are those of Pulsar's protocol. One table says how each type is handled. So a type that is
new in the protocol is refused until it is added to the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

SCHEMA_BYTES_MAX: Final = 256 * 1024
"""The largest definition. Its record holds it in base64, and every metadata store must take that record."""

PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""The largest size of a schema's properties: keys and values together, in UTF-8."""


class SchemaType(IntEnum):
    """The numbers are the protocol's."""

    NONE = 0
    STRING = 1
    JSON = 2
    PROTOBUF = 3
    AVRO = 4
    BOOLEAN = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FLOAT = 10
    DOUBLE = 11
    DATE = 12
    TIME = 13
    TIMESTAMP = 14
    KEY_VALUE = 15
    INSTANT = 16
    LOCAL_DATE = 17
    LOCAL_TIME = 18
    LOCAL_DATE_TIME = 19
    PROTOBUF_NATIVE = 20
    AUTO_CONSUME = 21
    EXTERNAL = 22


AVRO_LIKE: Final = frozenset({SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF})
"""Types whose definition is an Avro schema, whatever the encoding of the messages."""

PRIMITIVE: Final = frozenset(
    {
        SchemaType.BOOLEAN,
        SchemaType.INT8,
        SchemaType.INT16,
        SchemaType.INT32,
        SchemaType.INT64,
        SchemaType.FLOAT,
        SchemaType.DOUBLE,
        SchemaType.DATE,
        SchemaType.TIME,
        SchemaType.TIMESTAMP,
        SchemaType.INSTANT,
        SchemaType.LOCAL_DATE,
        SchemaType.LOCAL_TIME,
        SchemaType.LOCAL_DATE_TIME,
    }
)
"""Types without a definition: the type says everything."""


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema that a client has declared."""

    type: SchemaType
    data: bytes = b""
    """The definition; its format depends on the type."""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: int
    """The number of the version; each topic counts from 0."""
    schema: Schema
    fingerprint: str
    """Equal for two schemas of a topic exactly when the schemas are; see `broker.schemas.compatibility`."""
    created_ms: int = field(default=0, compare=False)
    """When it was added, in milliseconds since 1970."""
