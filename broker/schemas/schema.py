"""A schema as producers and consumers declare it: a type, its definition, and properties that the broker passes on.

Pure. The types and their numbers are those of Pulsar's protocol; what is done with each is one table, so that a type
that is added to the protocol is refused until somebody has decided about it here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

SCHEMA_BYTES_MAX: Final = 256 * 1024
"""The largest definition, so that its record, in which it stands in base64, is one that every metadata store takes."""

PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""The most that a schema's properties may hold, keys and values together, in UTF-8."""


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
"""Types whose definition is an Avro schema, whatever the messages are encoded in."""

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
"""Types that their name describes fully."""


@dataclass(frozen=True, slots=True)
class Schema:
    """What a client declared."""

    type: SchemaType
    data: bytes = b""
    """The definition; what stands in it depends on the type."""
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoredSchema:
    """One version of a topic's schema."""

    version: int
    """Counts from 0 for each topic."""
    schema: Schema
    fingerprint: str
    """The same for two schemas of a topic exactly when they mean the same; see `broker.schemas.compatibility`."""
