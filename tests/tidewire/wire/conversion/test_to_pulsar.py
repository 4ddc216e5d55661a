"""Kafka's record batches as Pulsar's payloads. Our client's decoder reads them; `kio` writes some of the batches."""

from datetime import datetime, timedelta
from io import BytesIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.schema import NewRecordBatch, RecordHeader
from kio.records.schema import Record as OracleRecord
from kio.records.writers import write_new_batch
from kio.static.primitive import i8, i16, i32, i64

from tests.tidewire.wire.conversion.drawn import BASE, NOW_MS, batch_of, pulsar_of
from tidewire.wire.conversion.errors import Unconvertible
from tidewire.wire.conversion.headers import HEADERS_MAX
from tidewire.wire.conversion.to_pulsar import WORK_AT_ONCE, to_pulsar
from tidewire.wire.kafka import records
from tidewire.wire.kafka.record_batches import Compression, encode, read_header
from tidewire.wire.kafka.records import Header, Marker, Record
from tidewire.wire.pulsar.checksums import verify_payload
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb
from tidewire.wire.pulsar.message_ids import ack_set_of_bits
from tidewire.wire.pulsar.messages import parse_payload, read_batch, split_messages

EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
AT = 1_600_000_000_000


def test_a_batch_becomes_a_batch_of_as_many_messages() -> None:
    """K42: the indexes of the messages are the records' places, so message ids and acknowledged bits fit the entry."""
    payload = pulsar_of(batch_of([Record(b"k%d" % place, b"v%d" % place, AT + place) for place in range(70)]))
    verify_payload(payload)
    metadata, body = parse_payload(payload)
    assert metadata.num_messages_in_batch == 70
    assert metadata.uncompressed_size == len(body)
    assert not metadata.HasField("compression")
    assert (metadata.producer_name, metadata.publish_time) == ("kafka", NOW_MS)
    assert (metadata.sequence_id, metadata.highest_sequence_id) == (BASE, BASE + 69)
    for place, message in enumerate(split_messages(payload)):
        assert (message.batch_index, message.batch_size) == (place, 70)
        assert (message.key, message.value) == (f"k{place}", b"v%d" % place)
        assert (message.event_time_ms, message.publish_time_ms) == (AT + place, NOW_MS)
        assert message.sequence_id == BASE + place
    left = split_messages(payload, ack_set_of_bits(1 << 65 | 1 << 3))
    assert [message.value for message in left] == [b"v3", b"v65"]


def test_a_single_record_becomes_a_message_alone() -> None:
    """K42: its id is its entry's."""
    payload = pulsar_of(batch_of([Record(b"k", b"v", AT, (Header(b"h", b"x"), Header(b"n", None)))]))
    verify_payload(payload)
    metadata, body = parse_payload(payload)
    assert not metadata.HasField("num_messages_in_batch")
    assert metadata.uncompressed_size == len(body) == 1
    (message,) = split_messages(payload)
    assert (message.batch_index, message.key, message.value, message.event_time_ms) == (None, "k", b"v", AT)
    assert message.properties == {"h": "x", "kafka:null:n": ""}
    assert (message.sequence_id, message.producer_name) == (BASE, "kafka")


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize(
    ("key", "text", "is_base64"),
    [
        (None, None, False),
        (b"", "", False),
        ("käy".encode(), "käy", False),
        (b"\xff\0", "/wA=", True),
    ],
)
def test_a_key_is_text_if_it_can_be(key: bytes | None, text: str | None, is_base64: bool, count: int) -> None:
    """K42: null is not empty, and bytes are marked as Pulsar's clients mark them."""
    for message in split_messages(pulsar_of(batch_of([Record(key, b"v", AT)] * count))):
        assert (message.key, message.key_is_base64) == (text, is_base64)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("value", [None, b"", b"\0"])
def test_a_null_value_is_not_an_empty_one(value: bytes | None, count: int) -> None:
    """K42: it is a tombstone in both protocols."""
    for message in split_messages(pulsar_of(batch_of([Record(b"k", value, AT)] * count))):
        assert (message.null_value, message.value) == (value is None, value or b"")


@pytest.mark.parametrize(
    ("moment", "event_time"), [(1, 1), (2**63 - 1, 2**63 - 1), (0, None), (-1, None), (-(2**62), None)]
)
def test_a_timestamp_is_an_event_time(moment: int, event_time: int | None) -> None:
    """K42: Pulsar has no event times before 1970."""
    metadata, _ = parse_payload(pulsar_of(batch_of([Record(None, b"v", moment)])))
    assert (metadata.event_time if metadata.HasField("event_time") else None) == event_time


def test_a_timestamp_beyond_64_bits_is_none() -> None:
    """K42, E8: a delta may lead there, whatever the base is."""
    data = bytearray(batch_of([Record(None, b"v", 2**63 - 1), Record(None, b"v", 2**63 - 1)]))
    assert data[61 + 5 : 61 + 11] == b"\x02v\0\x0e\0\0"
    data[61 + 10] = 0x02  # the delta of the second record's time: 1
    (first, second) = split_messages(pulsar_of(bytes(data)))
    assert (first.event_time_ms, second.event_time_ms) == (2**63 - 1, None)


def test_the_time_of_the_append_is_the_event_time_of_all() -> None:
    """K39, K42: if the batch says so."""
    data = bytearray(batch_of([Record(None, b"a", AT), Record(None, b"b", AT + 9)]))
    data[22] |= 0x08
    assert [message.event_time_ms for message in split_messages(pulsar_of(bytes(data)))] == [AT + 9, AT + 9]


@pytest.mark.parametrize("count", [1, 3])
def test_the_ordering_key_is_the_header_of_its_name(count: int) -> None:
    """K42: a message that came from Pulsar, and was sent on by a Kafka client, keeps its order."""
    record = Record(b"k", b"v", AT, (Header(b"a", b"b"), Header(b"pulsar:ordering_key", b"\xff")))
    for message in split_messages(pulsar_of(batch_of([record] * count))):
        assert (message.ordering_key, message.properties) == (b"\xff", {"a": "b"})


@pytest.mark.parametrize("codec", list(Compression))
def test_each_codec_is_read(codec: Compression) -> None:
    """K42: and what Pulsar's clients get has none, so each of them reads it."""
    payload = pulsar_of(batch_of([Record(None, b"v" * 400, AT)] * 9, codec))
    assert [message.value for message in split_messages(payload)] == [b"v" * 400] * 9
    assert parse_payload(payload)[0].compression == pb.CompressionType.NONE


@given(
    st.lists(
        st.tuples(
            st.none() | st.text(max_size=5),
            st.none() | st.binary(max_size=40),
            st.integers(1, 4_000_000_000).map(lambda seconds: seconds * 1_000),  # The oracle keeps whole seconds.
            st.dictionaries(st.text(max_size=5).map(lambda name: "h" + name), st.text(max_size=5), max_size=3),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_the_oracle_writes_is_converted(
    some: list[tuple[str | None, bytes | None, int, dict[str, str]]],
) -> None:
    """K42: a batch that our own code did not build."""
    written = BytesIO()
    batch = NewRecordBatch(
        producer_id=i64(9),
        producer_epoch=i16(1),
        base_sequence=i32(40),
        attributes=i16(0x10),
        records=tuple(
            OracleRecord(
                attributes=i8(0),
                timestamp=EPOCH + timedelta(milliseconds=moment),  # type: ignore[arg-type]
                offset=i64(place),
                key=None if key is None else key.encode(),
                value=value,
                headers=tuple(RecordHeader(key=name.encode(), value=text.encode()) for name, text in headers.items()),
            )
            for place, (key, value, moment, headers) in enumerate(some)
        ),
    )
    write_new_batch(written, batch)
    found = split_messages(pulsar_of(written.getvalue()))
    assert [
        (each.key, None if each.null_value else each.value, each.event_time_ms, each.properties) for each in found
    ] == some


def test_no_marker_becomes_a_message() -> None:
    """K35, K42: nor anything else in a control batch."""
    marker = records.build_marker(Marker(True, 1), producer_id=9, producer_epoch=0, timestamp_ms=AT)
    with pytest.raises(Unconvertible, match="marker"):
        pulsar_of(marker)


EMPTY = encode(b"", attributes=0, offsets=2, base_timestamp_ms=AT, max_timestamp_ms=AT, record_count=0)
TWO = batch_of([Record(b"k", b"v", AT), Record(b"k", b"v", AT)])


def changed(at: int, new: bytes) -> bytes:
    """The batch of two records with other bytes."""
    return TWO[:at] + new + TWO[at + len(new) :]


@pytest.mark.parametrize(
    ("batch", "count", "why"),
    [
        (TWO, 3, "2 records in 2 offsets, but its entry has 3"),
        (TWO, 1, "but its entry has 1"),
        (changed(57, b"\0\0\0\x03"), 2, "counts 3 records"),
        (changed(23, b"\0\0\0\x02"), 2, "in 3 offsets"),
        (TWO + b"x", 2, "1 bytes are behind"),
        (TWO[:-1], 2, "stands in"),
        (TWO[:60], 2, "too few"),
        (b"", 1, "too few"),
        (changed(16, b"\x01"), 2, "format 1"),
        (changed(22, b"\x07"), 2, "no known compression"),
        (changed(22, b"\x01"), 2, "do not decompress"),
        (changed(61 + 3, b"\x02"), 2, "record 0 of the batch stands at the offset of record 1"),
        (changed(61 + 4, b"\x7f"), 2, "a number|longer than"),
        (EMPTY, 2, "counts 0 records"),
    ],
)
def test_a_batch_that_does_not_add_up_is_refused(batch: bytes, count: int, why: str) -> None:
    """K20, K42: a message at a wrong index would be acknowledged in place of another."""
    with pytest.raises(Unconvertible, match=why):
        pulsar_of(batch, count=count)


@given(st.integers(0, len(TWO) - 1), st.integers(0, 255), st.sampled_from(list(Compression)))
def test_no_batch_raises_anything_else(at: int, byte: int, codec: Compression) -> None:
    """K42, E8: whatever a client writes."""
    batch = bytearray(batch_of([Record(b"key", b"value", AT, (Header(b"h", b"x"),))] * 2, codec))
    batch[min(at, len(batch) - 1)] = byte
    try:
        pulsar_of(bytes(batch), count=2)
    except Unconvertible:
        return


@pytest.mark.parametrize("count", [1, 20])
def test_the_payload_is_bounded(count: int) -> None:
    """E8, K42: to the byte, because clients refuse what is larger."""
    batch = batch_of([Record(b"k", b"v" * 90, AT)] * count)
    size = len(pulsar_of(batch))
    assert len(pulsar_of(batch, size_max=size)) == size
    with pytest.raises(Unconvertible, match="more than"):
        pulsar_of(batch, size_max=size - 1)


@pytest.mark.parametrize("codec", [each for each in Compression if each is not Compression.NONE])
def test_a_bomb_harms_itself_only(codec: Compression) -> None:
    """E8, K42: nothing is inflated beyond the bound."""
    bomb = batch_of([Record(None, bytes(3_000_000), AT)], codec)
    with pytest.raises(Unconvertible, match="decompress"):
        pulsar_of(bomb, size_max=1_000_000)


def test_a_bound_on_the_payload_stops_the_work() -> None:
    """E8: tiny records grow most, so the conversion ends where the bound is passed."""
    batch = batch_of([Record(None, b"", AT)] * 30_000)
    steps = to_pulsar(batch, message_count=30_000, base_index=0, publish_time_ms=NOW_MS, size_max=len(batch))
    taken: list[None] = []
    with pytest.raises(Unconvertible, match="more than"):
        taken.extend(steps)
    assert 20 < len(taken) < 2 * 30_000 // WORK_AT_ONCE * 2 // 3


def test_a_step_converts_a_bounded_number_of_records() -> None:
    """E7: as many as `WORK_AT_ONCE`; a batch of tens of thousands takes many steps."""
    some = [Record(None, b"v", AT)] * (50 * WORK_AT_ONCE)
    steps = to_pulsar(batch_of(some), message_count=len(some), base_index=0, publish_time_ms=NOW_MS, size_max=2_000_000)
    assert len(list(steps)) == 1 + 2 * 50


def test_a_record_with_many_headers_has_a_step_of_its_own() -> None:
    """E7: the step ends before it and after it."""
    most = Record(None, b"v", AT, tuple(Header(b"%d" % number, b"\xff") for number in range(HEADERS_MAX)))
    small = most._replace(headers=())
    steps = to_pulsar(
        batch_of([small, most, most, small]), message_count=4, base_index=0, publish_time_ms=NOW_MS, size_max=1_000_000
    )
    assert len(list(steps)) == 1 + 2 * 2
    with pytest.raises(Unconvertible, match=f"{HEADERS_MAX + 1} headers"):
        pulsar_of(batch_of([most._replace(headers=(*most.headers, Header(b"", b"")))]), size_max=1_000_000)


def test_a_batch_may_claim_more_records_than_it_has_bytes() -> None:
    """E8: the claim costs nothing."""
    batch = encode(
        b"", attributes=0, offsets=2**31 - 1, base_timestamp_ms=0, max_timestamp_ms=0, record_count=2**31 - 1
    )
    assert read_header(batch).record_count == 2**31 - 1
    with pytest.raises(Unconvertible, match="in 0 bytes"):
        pulsar_of(batch)


def test_each_message_has_a_size() -> None:
    """K42: Pulsar's clients need it to find the next one."""
    metadata, body = parse_payload(pulsar_of(TWO))
    assert [(single.payload_size, value) for _, single, value in read_batch(metadata, bytes(body))] == [(1, b"v")] * 2


def test_the_checksum_of_a_stored_batch_is_not_verified_again() -> None:
    """It was when the batch came, and the journal and the ledger have their own."""
    assert pulsar_of(changed(17, b"\0\0\0\0")) == pulsar_of(TWO)
