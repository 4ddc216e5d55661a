"""The columns of a topic in Spark.

    key           string, null when the message has none; a binary key is shown as base64, as on the wire
    value         binary, or with schema=auto the type of the topic's schema; null when the producer sent no value
                  (compaction treats that as a deletion)
    topic         string, the topic's full name
    segment       string, its part: `8000-ffff-1` (hash range and id) or `partition-3`; null when it has no parts
    position      struct<ledger, entry, batch_index>, the place in the segment; unique there, and rising in order of
                  sending. batch_index is null for a message that was sent alone
    index         long, the message's number in its segment, from 0 without gaps (messages of aborted transactions
                  count); null where the broker does not give it
    publish_time  timestamp, when the producer sent it, by the producer's clock
    event_time    timestamp, when the event happened, as the producer says; null when it gave no time
    properties    map<string, string>, empty when there are none

A time beyond the range of a timestamp (in 300,000 years) is null. Within a segment, messages are ordered by (ledger,
entry, batch_index). A segment's messages come after those of its parents. Other segments have no order among them.

This module needs nothing but pyspark, because Spark asks for the schema in processes that read nothing.
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
    """The columns with these names, in their order."""
    return StructType([field for field in made.fields if field.name in names])


def with_value(value: DataType) -> StructType:
    """The columns, with a `value` of that type."""
    return StructType(
        [StructField("value", value, nullable=True) if field.name == "value" else field for field in SCHEMA.fields]
    )
