"""Record batches: what `kio` writes is read, damage is refused, and a stored batch is placed without a copy."""

from datetime import UTC, datetime
from io import BytesIO

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record, RecordHeader
from kio.records.writers import write_new_batch
from kio.static.primitive import i8, i16, i32, i64

from tidewire.wire.kafka.record_batches import (
    HEADER_SIZE,
    NO_PRODUCER_ID,
    BatchHeader,
    CorruptBatch,
    UnsupportedFormat,
    batches,
    check,
    placed,
    read_header,
)

MOMENT = datetime(2026, 11, 1, 12, tzinfo=UTC)


def batch(values: int = 3, *, producer: int = -1, epoch: int = -1, sequence: int = -1, attributes: int = 0) -> bytes:
    records = tuple(
        Record(
            attributes=i8(0),
            timestamp=MOMENT,  # type: ignore[arg-type]
            offset=i64(number),
            key=None,
            value=b"v%d" % number,
            headers=(RecordHeader(key=b"h", value=None),),
        )
        for number in range(values)
    )
    written = BytesIO()
    write_new_batch(
        written,
        NewRecordBatch(
            producer_id=i64(producer),
            producer_epoch=i16(epoch),
            base_sequence=i32(sequence),
            records=records,
            attributes=i16(attributes),
        ),
    )
    return written.getvalue()


def test_a_header_says_what_the_client_wrote() -> None:
    """K20: counts, timestamps, producer and sequence."""
    data = batch(3, producer=9, epoch=2, sequence=40, attributes=0x10)
    header = read_header(data)
    check(header, data)
    assert header.size == len(data)
    assert (header.record_count, header.offset_count) == (3, 3)
    assert header.max_timestamp_ms == round(MOMENT.timestamp() * 1000)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 40)
    assert header.is_transactional
    assert not header.is_control
    assert not header.is_log_append_time
    assert header.compression == 0


def test_a_plain_batch_has_no_producer() -> None:
    """K20: -1 stands for none."""
    assert read_header(batch()).producer_id == NO_PRODUCER_ID


def test_records_are_divided_into_batches() -> None:
    """K20: older clients send several in one request."""
    several = [batch(1), batch(2), batch(3)]
    assert [header.record_count for header, _ in batches(b"".join(several))] == [1, 2, 3]
    assert [data for _, data in batches(b"".join(several))] == several
    one = batch()
    assert [data is one for _, data in batches(one)] == [True]
    assert list(batches(b"")) == []


def test_a_placed_batch_is_the_same_at_another_offset() -> None:
    """K12: base offset and leader epoch stand outside of the checksum. `kio` reads what a consumer gets."""
    data = batch(2)
    head, rest = placed(data, 1_000, 7)
    sent = head + bytes(rest)
    header = read_header(sent)
    check(header, sent)
    assert (header.base_offset, header.leader_epoch) == (1_000, 7)
    assert header._replace(base_offset=0, leader_epoch=read_header(data).leader_epoch) == read_header(data)
    found, size = read_batch(sent, 0)
    assert size == len(sent)
    assert [(record.offset, record.value) for record in found.records] == [(1_000, b"v0"), (1_001, b"v1")]


@given(st.integers(21, 200), st.integers(0, 7))
def test_one_flipped_bit_behind_the_checksum_is_found(at: int, bit: int) -> None:
    """K20: from the attributes to the last record."""
    data = bytearray(batch(9))
    data[at % (len(data) - 21) + 21] ^= 1 << bit
    with pytest.raises(CorruptBatch):
        check(read_header(bytes(data)), bytes(data))


@pytest.mark.parametrize("magic", [0, 1])
def test_an_older_format_is_refused_by_name(magic: int) -> None:
    """E20: it is told apart from damage."""
    data = bytearray(batch())
    data[16] = magic
    with pytest.raises(UnsupportedFormat, match=f"format {magic}"):
        read_header(bytes(data))
    with pytest.raises(UnsupportedFormat):
        read_header(bytes(data[:17]))


@pytest.mark.parametrize(
    "damaged",
    [
        batch()[: HEADER_SIZE - 1],
        batch()[:-1],
        batch()[:16] + b"\x03" + batch()[17:],
        batch()[:8] + (HEADER_SIZE - 13).to_bytes(4, "big") + batch()[12:],
        batch()[:8] + b"\xff\xff\xff\xff" + batch()[12:],
    ],
)
def test_a_batch_of_the_wrong_shape_is_refused(damaged: bytes) -> None:
    """K20: cut short, of another format, or with a length that cannot be."""
    with pytest.raises(CorruptBatch):
        read_header(damaged)


def counted(data: bytes, *, last_delta: int, count: int) -> tuple[BatchHeader, bytes]:
    """The batch with other counts and a checksum that fits."""
    changed = bytearray(data)
    changed[23:27] = last_delta.to_bytes(4, "big", signed=True)
    changed[57:61] = count.to_bytes(4, "big", signed=True)
    changed[17:21] = google_crc32c.value(bytes(changed[21:])).to_bytes(4, "big")
    return read_header(bytes(changed)), bytes(changed)


@pytest.mark.parametrize(("last_delta", "count"), [(2, 2), (1, 3), (-1, 0), (2**31 - 1, -(2**31)), (0, 0), (-2, -1)])
def test_counts_that_contradict_each_other_are_refused(last_delta: int, count: int) -> None:
    """K20: a batch takes one offset for each record."""
    header, data = counted(batch(3), last_delta=last_delta, count=count)
    with pytest.raises(CorruptBatch, match="counts"):
        check(header, data)
