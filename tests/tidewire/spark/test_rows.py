from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType

from tests.tidewire.wire.protobufs import field
from tidewire.protocol.positions import EARLIEST, EntryPosition
from tidewire.spark.decoding import Decoder
from tidewire.spark.errors import UnreadableMessage
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.pushed import Pushed
from tidewire.spark.pyspark_versions import arrow_schema
from tidewire.spark.receiving import ReceivedEntry
from tidewire.spark.rows import ARROW_SCHEMA, BYTES_WANTED, ROWS_MAX, ROWS_WANTED, Rows, record_batches
from tidewire.spark.schema import SCHEMA, only, with_value
from tidewire.spark.topic_schemas import TopicSchema
from tidewire.wire.pulsar.building import (
    build_batch,
    build_message,
    build_payload,
    encode_batch,
    message_metadata,
    single_message_metadata,
)
from tidewire.wire.pulsar.errors import MessageError
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import ack_set_of_bits
from tidewire.wire.pulsar.messages import parse_payload, split_messages

TOPIC = "topic://public/default/x"
RANGE = SegmentRange(TOPIC, "0000-ffff-0", "segment://public/default/x/0000-ffff-0", end=EntryPosition(9, 9))
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PUBLISHED_MS = 1_700_000_000_123
# A timestamp counts microseconds in 63 bits.
TIME_MS_MAX = (2**63 - 1) // 1000

Message = tuple[pb.SingleMessageMetadata, bytes]

keys = st.none() | st.text(max_size=5)
# What Python can show as a datetime, what only Arrow can hold, and what nothing can.
event_times = st.none() | st.integers(1, 4_000_000_000_000) | st.integers(TIME_MS_MAX + 1, 2**64 - 1)
messages = st.builds(
    lambda number, key, properties, time, value, null: (
        single_message_metadata(number, key=key, properties=properties, event_time_ms=time, null_value=null),
        b"" if null else value,
    ),
    st.integers(0, 9),
    keys,
    st.just({}) | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    event_times,
    st.binary(max_size=9),
    st.sampled_from([False, False, False, True]),
)
plain_messages = st.builds(
    lambda key, time, value: (single_message_metadata(1, key=key, event_time_ms=time), value),
    keys,
    event_times,
    st.binary(min_size=1, max_size=9),
)
batches = st.lists(plain_messages, min_size=1, max_size=5) | st.lists(messages, min_size=1, max_size=5)


def entry(payload: bytes, ack_set: tuple[int, ...] = (), place: EntryPosition = EARLIEST) -> ReceivedEntry:
    metadata, body = parse_payload(payload)
    return ReceivedEntry(place, metadata, body, ack_set)


def batch_payload(batch: Iterable[Message], codec: pb.CompressionType = pb.CompressionType.NONE) -> bytes:
    return build_batch(message_metadata("p", 0, PUBLISHED_MS), list(batch), codec)


def alone(message: Message) -> bytes:
    described, value = message
    metadata = message_metadata("p", 0, PUBLISHED_MS)
    metadata.properties.extend(described.properties)
    if described.HasField("partition_key"):
        metadata.partition_key = described.partition_key
    if described.event_time:
        metadata.event_time = described.event_time
    metadata.null_value = described.null_value
    return build_message(metadata, value)


def table(entries: Iterable[ReceivedEntry]) -> pa.Table:
    made = list(record_batches(RANGE, entries))
    for batch in made:
        batch.validate(full=True)
    return pa.Table.from_batches(made, ARROW_SCHEMA)


def timestamp(time_ms: int | None) -> datetime | None:
    return None if time_ms is None or time_ms > TIME_MS_MAX else EPOCH + timedelta(milliseconds=time_ms)


def expected(received: ReceivedEntry, payload: bytes) -> Iterator[dict[str, Any]]:
    for message in split_messages(payload, received.ack_set):
        yield {
            "key": message.key,
            "value": None if message.null_value else message.value,
            "topic": TOPIC,
            "segment": "0000-ffff-0",
            "position": {
                "ledger": received.position.ledger,
                "entry": received.position.entry,
                "batch_index": message.batch_index,
            },
            "index": None
            if received.last_index is None
            else received.last_index - message.batch_size + 1 + (message.batch_index or 0),
            "publish_time": timestamp(message.publish_time_ms),
            "event_time": timestamp(message.event_time_ms),
            "properties": list(message.properties.items()),
        }


def test_what_spark_is_told_and_what_it_gets_are_one_schema() -> None:
    assert from_arrow_schema(ARROW_SCHEMA) == SCHEMA
    assert ARROW_SCHEMA.field("publish_time").type == pa.timestamp("us", "UTC")
    assert [column.name for column in ARROW_SCHEMA] == [
        *("key", "value", "topic", "segment", "position", "index", "publish_time", "event_time", "properties")
    ]


@given(
    st.lists(
        st.tuples(
            batches.map(lambda batch: batch_payload(batch)),
            st.just(()) | st.builds(ack_set_of_bits, st.integers(0, 31)),
        )
        | st.tuples(messages.map(alone), st.just(())),
        max_size=4,
    )
)
def test_rows_are_the_messages_that_the_codec_reads(payloads: list[tuple[bytes, tuple[int, ...]]]) -> None:
    received = [entry(payload, ack_set, EntryPosition(3, place)) for place, (payload, ack_set) in enumerate(payloads)]
    # Every other broker tells the index.
    received = [one._replace(last_index=100 * place) if place % 2 else one for place, one in enumerate(received)]
    rows = [row for one, (payload, _) in zip(received, payloads, strict=True) for row in expected(one, payload)]
    assert table(received).to_pylist() == rows


@pytest.mark.parametrize("codec", [pb.CompressionType.LZ4, pb.CompressionType.ZSTD])
def test_compressed_batches_are_read(codec: pb.CompressionType) -> None:
    payload = batch_payload([(single_message_metadata(n, key="k"), b"value" * 9) for n in range(9)], codec)
    assert table([entry(payload)]).column("value").to_pylist() == [b"value" * 9] * 9


def test_a_message_sent_alone_has_no_place_in_a_batch_and_a_batch_of_one_has() -> None:
    message = (single_message_metadata(0), b"v")
    made = table([entry(alone(message)), entry(batch_payload([message]))])
    assert [place["batch_index"] for place in made.column("position").to_pylist()] == [None, 0]


def test_a_plain_topic_has_no_segment() -> None:
    rows = Rows("persistent://public/default/y", None)
    rows.add(entry(batch_payload([(single_message_metadata(0), b"v")])))
    (batch,) = rows.take()
    assert batch.column("segment").to_pylist() == [None]
    assert not list(rows.take())


def test_a_publish_time_that_no_timestamp_can_hold_is_null() -> None:
    described = message_metadata("p", 0, TIME_MS_MAX + 1)
    made = table([entry(build_message(described, b"v"))])
    assert made.column("publish_time").to_pylist() == [None]


def test_a_key_that_is_not_text_is_read_as_the_codec_reads_it() -> None:
    key_number = pb.SingleMessageMetadata.PARTITION_KEY_FIELD_NUMBER
    encoded = pb.SingleMessageMetadata(payload_size=1).SerializeToString() + field(key_number, b"\xff")
    body = len(encoded).to_bytes(4, "big") + encoded + b"v"
    described = message_metadata("p", 0, PUBLISHED_MS)
    described.num_messages_in_batch = 1
    assert table([entry(build_payload(described, body))]).column("key").to_pylist() == ["\ufffd"]


def test_record_batches_are_bounded_in_rows() -> None:
    thousand = batch_payload([(single_message_metadata(n), b"v") for n in range(1000)])
    entries = -(-ROWS_WANTED // 1000)
    rows = [batch.num_rows for batch in record_batches(RANGE, [entry(thousand)] * 3 * entries)]
    assert rows == [1000 * entries] * 3


def test_an_entry_of_very_many_messages_is_divided() -> None:
    count = 2 * ROWS_MAX + 1
    payload = batch_payload([(single_message_metadata(0), b"v")] * count)
    made = list(record_batches(RANGE, [entry(payload)]))
    assert [batch.num_rows for batch in made] == [ROWS_MAX, ROWS_MAX, 1]
    assert made[2].column("position").to_pylist() == [{"ledger": -1, "entry": -1, "batch_index": count - 1}]


def test_record_batches_are_bounded_in_bytes() -> None:
    quarter = batch_payload([(single_message_metadata(0), bytes(BYTES_WANTED // 4))])
    rows = [batch.num_rows for batch in record_batches(RANGE, [entry(quarter)] * 10)]
    assert rows == [4, 4, 2]


def test_a_batch_that_does_not_add_up_is_named_by_its_place() -> None:
    described = message_metadata("p", 0, PUBLISHED_MS)
    described.num_messages_in_batch = 2
    body = encode_batch([(single_message_metadata(0), b"v")])
    with pytest.raises(UnreadableMessage, match=rf"^{RANGE.wire_name} 4:2: "):
        table([entry(build_payload(described, body), place=EntryPosition(4, 2))])


@pytest.mark.parametrize("odd", ["encrypted", "one chunk"])
def test_what_this_version_does_not_read_is_said(odd: str) -> None:
    described = message_metadata("p", 0, PUBLISHED_MS)
    if odd == "encrypted":
        described.encryption_keys.add(key="k", value=b"v")
    else:
        described.num_chunks_from_msg = 2
        described.total_chunk_msg_size = 10
    with pytest.raises(UnreadableMessage, match=odd):
        table([entry(build_payload(described, b"body"))])


def test_an_entry_that_cannot_be_read_leaves_the_rows_before_it_as_they_were() -> None:
    rows = Rows(TOPIC, None)
    rows.add(entry(batch_payload([(single_message_metadata(0), b"v")])))
    described = message_metadata("p", 0, PUBLISHED_MS)
    described.num_messages_in_batch = 7
    with pytest.raises(MessageError):
        rows.add(entry(build_payload(described, b"body")))
    (batch,) = rows.take()
    assert batch.num_rows == 1


def test_rows_of_other_keys_and_entries_of_other_times_are_left_out() -> None:
    pushed = Pushed(keys=frozenset({"a"}), published_from_us=PUBLISHED_MS * 1000)
    late = batch_payload([(single_message_metadata(0, key="a"), b"1"), (single_message_metadata(1, key="b"), b"2")])
    early = build_message(message_metadata("p", 0, PUBLISHED_MS - 1), b"3")
    (made,) = record_batches(RANGE, [entry(early), entry(late), entry(early)], pushed=pushed)
    assert made.column("value").to_pylist() == [b"1"]


def test_an_entry_that_looked_well_is_named_by_its_place_among_others() -> None:
    described = message_metadata("p", 0, PUBLISHED_MS)
    described.num_messages_in_batch = 2
    cut = encode_batch([(single_message_metadata(0), b"value"), (single_message_metadata(1), b"value")])[:-1]
    good = batch_payload([(single_message_metadata(0), b"value")])
    received = [
        entry(good, place=EntryPosition(4, 1)),
        entry(build_payload(described, cut), place=EntryPosition(4, 2)),
        entry(good, place=EntryPosition(4, 3)),
    ]
    with pytest.raises(UnreadableMessage, match=rf"^{RANGE.wire_name} 4:2: "):
        table(received)


def test_only_the_columns_that_are_asked_for_are_made() -> None:
    schema = arrow_schema(only(SCHEMA, {"value", "index"}))
    payload = batch_payload([(single_message_metadata(n, key=str(n)), b"%d" % n) for n in range(3)])
    received = entry(payload)._replace(last_index=7)
    (made,) = record_batches(RANGE, [received], schema, pushed=Pushed(keys=frozenset({"1", "2"})))
    assert made.to_pylist() == [{"value": b"1", "index": 6}, {"value": b"2", "index": 7}]


def test_entries_of_which_nothing_is_left_have_no_values_to_decode() -> None:
    """A batch is like this when compaction has removed all its messages."""
    gone = pb.SingleMessageMetadata(payload_size=1, compacted_out=True)
    schema = arrow_schema(with_value(StringType()))
    decoder = Decoder(TopicSchema(pb.Schema.String, ""), StringType(), lambda version: pytest.fail("not asked"))
    rows = Rows("t", None, schema, decoder)
    rows.add(entry(batch_payload([(gone, b"v")])))
    assert not sum(batch.num_rows for batch in rows.take())


def test_values_are_decoded_each_run_by_its_version() -> None:
    class Versions:
        def column(self, values: Sequence[bytes | None], version: bytes) -> pa.Array:
            return pa.array([f"{version.decode()}:{len(values)}" for _ in values])

    schema = arrow_schema(with_value(StringType()))
    entries = []
    for version in (b"1", b"1", b"2", b"1"):
        described = message_metadata("p", 0, PUBLISHED_MS)
        described.schema_version = version
        entries.append(entry(build_message(described, b"v")))
    (made,) = record_batches(RANGE, entries, schema, cast("Decoder", Versions()))
    assert made.column("value").to_pylist() == ["1:2", "1:2", "2:1", "1:1"]
