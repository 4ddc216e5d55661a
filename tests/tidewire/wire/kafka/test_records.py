"""The records within a batch, compared with `kio`; their compression; the markers of transactions."""

from datetime import datetime, timedelta
from io import BytesIO

import cramjam
import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, RecordBatch, RecordHeader
from kio.records.schema import Record as OracleRecord
from kio.records.writers import write_new_batch
from kio.static.primitive import i8, i16, i32, i64

from tidewire.wire.kafka import records
from tidewire.wire.kafka.compression import compress, decompress_steps
from tidewire.wire.kafka.record_batches import CONTROL, NO_PRODUCER_ID, Compression, CorruptBatch, check, read_header
from tidewire.wire.kafka.records import HEADERS_MAX, BatchBuilder, Header, Marker, Record
from tidewire.wire.steps import finished

SIZE_MAX = 1024 * 1024
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")

maybe_bytes = st.none() | st.binary(max_size=40)
some_records = st.lists(
    st.builds(
        Record,
        maybe_bytes,
        maybe_bytes,
        # The oracle keeps whole seconds.
        st.integers(0, 4_000_000_000).map(lambda seconds: seconds * 1_000),
        st.lists(st.builds(Header, st.binary(max_size=9), maybe_bytes), max_size=3).map(tuple),
    ),
    min_size=1,
    max_size=9,
)


def decompress(codec: Compression, data: bytes, size_max: int) -> bytes:
    return bytes(finished(decompress_steps(codec, data, size_max)))


def read_all(batch: bytes, size_max: int = SIZE_MAX) -> list[tuple[int, Record]]:
    header = read_header(batch)
    return list(records.read(header, batch, size_max))


def oracle_reads(batch: bytes) -> RecordBatch:
    found, size = read_batch(batch, 0)
    assert size == len(batch)
    return found


@given(some_records)
def test_the_oracle_reads_what_is_built(some: list[Record]) -> None:
    """K42: null and empty keys and values, repeated and binary headers and timestamps."""
    batch = records.build(some)
    check(read_header(batch), batch)
    assert read_all(batch) == list(enumerate(some))
    found = oracle_reads(batch)
    for offset, (record, other) in enumerate(zip(some, found.records, strict=True)):
        assert (other.offset, other.key, other.value) == (offset, record.key, record.value)
        assert other.timestamp == EPOCH + timedelta(milliseconds=record.timestamp_ms)
        # The oracle takes an empty key or value of a header for what it is.
        assert [(header.key, header.value) for header in other.headers] == list(record.headers)


@given(some_records)
def test_what_the_oracle_writes_is_read(some: list[Record]) -> None:
    """K42: the same in the other direction."""
    written = BytesIO()
    batch = NewRecordBatch(
        producer_id=i64(-1),
        producer_epoch=i16(-1),
        base_sequence=i32(-1),
        attributes=i16(0),
        records=tuple(
            OracleRecord(
                attributes=i8(0),
                timestamp=EPOCH + timedelta(milliseconds=record.timestamp_ms),  # type: ignore[arg-type]
                offset=i64(number),
                key=record.key,
                value=record.value,
                headers=tuple(RecordHeader(key=key, value=value) for key, value in record.headers),
            )
            for number, record in enumerate(some)
        ),
    )
    write_new_batch(written, batch)
    assert read_all(written.getvalue()) == list(enumerate(some))


def test_timestamps_are_milliseconds_behind_the_first() -> None:
    """K42: they may go back."""
    some = [Record(None, None, moment) for moment in (1_700_000_000_123, 1_700_000_000_122, 1_700_000_009_999)]
    batch = records.build(some)
    header = read_header(batch)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (1_700_000_000_123, 1_700_000_009_999)
    assert [record for _, record in read_all(batch)] == some
    # Zigzag of 0, -1 and 9876, each behind the record's length and attributes.
    assert batch[61 + 2 : 61 + 3] == b"\0"
    assert batch[61 + 8 + 1 : 61 + 8 + 2] == b"\x01"


def test_records_may_leave_offsets_free() -> None:
    """K42: those of messages that compaction removed."""
    builder = BatchBuilder()
    some = [Record(b"a", b"1", 9), Record(None, b"2", 7)]
    builder.add(2, some[0])
    builder.add(300, some[1])
    assert builder.count == 2
    batch = builder.finish(400)
    assert builder.size == len(batch) - AT
    header = read_header(batch)
    assert (header.record_count, header.offset_count) == (2, 400)
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (9, 9)
    assert read_all(batch) == [(2, some[0]), (300, some[1])]
    assert [record.offset for record in oracle_reads(batch).records] == [2, 300]


def test_a_batch_may_be_without_any_time() -> None:
    """K42: -1 stands for none."""
    header = read_header(records.build([Record(None, b"a", -1), Record(None, b"b", -1)]))
    assert (header.base_timestamp_ms, header.max_timestamp_ms) == (-1, -1)


@pytest.mark.parametrize("codec", list(Compression))
def test_compressed_records_come_back(codec: Compression) -> None:
    """K42: in each codec, from a byte to more than the first buffer of decompression."""
    for size in (1, 1_000, 300_000):
        some = [Record(b"k", b"v" * size, 5)] * 3
        batch = records.build(some, codec)
        check(read_header(batch), batch)
        assert read_header(batch).compression == codec
        assert [record for _, record in read_all(batch)] == some


@pytest.mark.parametrize("codec", [each for each in Compression if each is not Compression.NONE])
def test_records_inflate_to_a_bound(codec: Compression) -> None:
    """E8, K42: ten thousand times as much is refused, and takes no more memory than the bound."""
    bomb = compress(codec, bytes(10 * SIZE_MAX))
    assert len(bomb) < SIZE_MAX
    with pytest.raises(CorruptBatch):
        decompress(codec, bomb, SIZE_MAX)
    assert decompress(codec, compress(codec, bytes(SIZE_MAX)), SIZE_MAX) == bytes(SIZE_MAX)


@pytest.mark.parametrize("codec", [each for each in Compression if each is not Compression.NONE])
def test_damaged_records_are_refused(codec: Compression) -> None:
    """K42: cut short, or another codec's."""
    good = compress(codec, bytes(range(256)) * 100)
    for damaged in (good[:-9], good[:3], b"\0" * 30):
        with pytest.raises(CorruptBatch):
            decompress(codec, damaged, SIZE_MAX)


def test_snappy_without_frames_is_read() -> None:
    """K42: librdkafka writes one raw block."""
    assert decompress(Compression.SNAPPY, bytes(cramjam.snappy.compress_raw(b"x" * 99)), SIZE_MAX) == b"x" * 99


def test_tiny_blocks_of_snappy_are_read_in_steps() -> None:
    """E7: a client may send a million of them."""
    frame = compress(Compression.SNAPPY, b"x")[16:]
    many = compress(Compression.SNAPPY, b"") + frame * 10_000
    assert decompress(Compression.SNAPPY, many, SIZE_MAX) == b"x" * 10_000
    assert len(list(decompress_steps(Compression.SNAPPY, many, SIZE_MAX))) == 10


def test_each_attempt_to_decompress_is_a_step() -> None:
    """E7: data that inflate a thousandfold take several buffers."""
    packed = compress(Compression.ZSTD, bytes(SIZE_MAX))
    assert len(list(decompress_steps(Compression.ZSTD, packed, SIZE_MAX))) == 2
    assert len(list(decompress_steps(Compression.GZIP, compress(Compression.GZIP, bytes(9)), SIZE_MAX))) == 1


@pytest.mark.parametrize("tail", [b"\0\0", b"\0\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\x09ab"])
def test_a_broken_frame_of_snappy_is_refused(tail: bytes) -> None:
    """E8: its length is checked before it is used."""
    with pytest.raises(CorruptBatch, match="snappy"):
        decompress(Compression.SNAPPY, compress(Compression.SNAPPY, b"x") + tail, SIZE_MAX)


def changed(batch: bytes, at: int, new: bytes) -> bytes:
    """The batch with other bytes and a checksum that fits."""
    data = bytearray(batch)
    data[at : at + len(new)] = new
    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    return bytes(data)


# A record of the key k and the value v: length, attributes, deltas of time and offset, k, v, no headers.
ONE = records.build([Record(b"k", b"v", 5)])
AT = 61


@pytest.mark.parametrize(
    ("at", "new"),
    [
        (AT, b"\x12"),  # it says that it is longer
        (AT + 3, b"\x02"),  # its offset is outside of its batch
        (AT + 4, b"\x7f"),  # its key is longer than the batch
        (AT + 4, b"\x05"),  # the length of its key is negative
        (AT + 8, b"\x01"),  # a negative number of headers
        (AT + 8, b"\x7e"),  # headers that are not there
        (57, b"\0\0\0\x09"),  # more records than can be there
        (21, b"\0\x07"),  # an unknown codec
        (21, b"\0\x01"),  # it is not compressed at all
    ],
)
def test_a_record_that_breaks_a_rule_is_refused(at: int, new: bytes) -> None:
    """E8, K42: the checksum is the client's, so it says nothing of the records."""
    with pytest.raises(CorruptBatch):
        read_all(changed(ONE, at, new))


def test_bytes_behind_the_last_record_are_refused() -> None:
    """K42: a count that is too small hides records."""
    two = records.build([Record(None, b"a", 1), Record(None, b"b", 1)])
    with pytest.raises(CorruptBatch, match="behind its last record"):
        read_all(changed(two, 57, b"\0\0\0\x01"))


def test_a_record_has_bounded_headers() -> None:
    """E7: one record is read in one step."""
    most = Record(None, None, 0, (Header(b"", None),) * HEADERS_MAX)
    assert read_all(records.build([most])) == [(0, most)]
    with pytest.raises(CorruptBatch, match="headers"):
        read_all(records.build([most._replace(headers=(*most.headers, Header(b"", b"")))]))


def test_a_header_must_have_a_key() -> None:
    """K42: null is for values."""
    batch = records.build([Record(None, None, 0, (Header(b"", b""),))])
    with pytest.raises(CorruptBatch, match="no key"):
        read_all(changed(batch, len(batch) - 2, b"\x01"))


@given(st.integers(61, 100), st.integers(0, 255))
def test_no_records_raise_anything_else(at: int, byte: int) -> None:
    """E8: whatever a client writes, its records are read or refused."""
    batch = records.build([Record(b"key", b"value", 7, (Header(b"h", b"x"),))] * 2)
    try:
        read_all(changed(batch, min(at, len(batch) - 1), bytes([byte])))
    except CorruptBatch:
        return


def test_the_time_of_the_append_counts_if_the_batch_says_so() -> None:
    """K39: LogAppendTime is one moment for all its records."""
    batch = changed(records.build([Record(None, b"a", 1), Record(None, b"b", 9)]), 21, b"\0\x08")
    assert [record.timestamp_ms for _, record in read_all(batch)] == [9, 9]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_comes_back(is_commit: bool) -> None:
    """K9: a control batch of one record, which takes one offset and 78 bytes, as Kafka's do."""
    marker = Marker(is_commit, coordinator_epoch=4)
    batch = records.build_marker(marker, producer_id=9, producer_epoch=2, timestamp_ms=1_700_000_000_000)
    header = read_header(batch)
    check(header, batch)
    assert (header.is_control, header.is_transactional, header.offset_count) == (True, True, 1)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    assert len(batch) == 78
    assert records.read_marker(header, batch) == marker
    (found,) = oracle_reads(batch).records
    assert found.key == b"\0\0\0" + (b"\x01" if is_commit else b"\0")


@pytest.mark.parametrize(
    "record", [Record(b"\0\0\0\x02", bytes(6), 0), Record(b"\0", bytes(6), 0), Record(bytes(4), b"", 0)]
)
def test_an_unknown_marker_is_refused(record: Record) -> None:
    """A later kind must not pass for an abort."""
    batch = records.build([record])
    with pytest.raises(CorruptBatch, match="marker"):
        records.read_marker(read_header(batch), batch)


@pytest.mark.parametrize("offsets", [1, 2, 64, 65, 100_000])
def test_a_filler_takes_offsets(offsets: int) -> None:
    """K21: it stands for entries that the broker does not show. It ends nobody's transaction."""
    batch = records.build_filler(offsets, 7)
    header = read_header(batch)
    assert (header.offset_count, header.is_control, header.is_transactional) == (offsets, True, False)
    assert header.producer_id == NO_PRODUCER_ID
    ((place, _marker),) = read_all(batch)
    assert place == offsets - 1
    assert records.read_marker(header, batch).is_commit
    oracle = oracle_reads(batch)
    assert (oracle.last_offset_delta, oracle.attributes) == (offsets - 1, CONTROL)
    assert [record.offset for record in oracle.records] == [offsets - 1]
