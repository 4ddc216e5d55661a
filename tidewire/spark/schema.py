"""The columns of a topic in Spark.

    key           string, null when the message has none; a key of bytes stands in base64, as on the wire
    value         binary, or with schema=auto what the topic's schema says; null when the producer sent none at all (a
                  deletion, to compaction)
    topic         string, the topic in full
    segment       string, its part: `8000-ffff-1` (hash range and id) or `partition-3`; null when it has no parts
    position      struct<ledger, entry, batch_index>, the place in the segment; unique there, and rising in order of
                  sending. batch_index is null for a message that was sent alone
    index         long, the message's number in its segment, from 0 without gaps (those of aborted transactions count);
                  null where the broker does not tell
    publish_time  timestamp, when the producer sent it, by the producer's clock
    event_time    timestamp, when it happened by the producer's word; null when none was given
    properties    map<string, string>, empty when there are none

A time that a timestamp cannot hold (300,000 years on) is null. The order of messages is (ledger, entry, batch_index)
within a segment; parents of a segment come before it; other segments are not ordered against each other.

This module needs nothing but pyspark, because Spark looks at the schema where nothing is read.
"""

from collections.abc import Container
from typing import Final

from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

POSITION: Final = StructType(
    [
        StructField("ledger", LongType(), nullable=False),
        StructField("entry", LongType(), nullable=False),
        StructField("batch_index", IntegerType(), nullable=True),
    ]
)

SCHEMA: Final = StructType(
    [
        StructField("key", StringType(), nullable=True),
        StructField("value", BinaryType(), nullable=True),
        StructField("topic", StringType(), nullable=False),
        StructField("segment", StringType(), nullable=True),
        StructField("position", POSITION, nullable=False),
        StructField("index", LongType(), nullable=True),
        StructField("publish_time", TimestampType(), nullable=True),
        StructField("event_time", TimestampType(), nullable=True),
        StructField("properties", MapType(StringType(), StringType(), valueContainsNull=False), nullable=False),
    ]
)


def only(made: StructType, names: Container[str]) -> StructType:
    """Those of the columns that are named, in their order."""
    return StructType([field for field in made.fields if field.name in names])


def with_value(value: DataType) -> StructType:
    """The columns, with a `value` of that type."""
    return StructType(
        [StructField("value", value, nullable=True) if field.name == "value" else field for field in SCHEMA.fields]
    )
