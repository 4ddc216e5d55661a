"""The record codec."""

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.outcomes import Made, Run, WriteId
from storage.metadata.record_codec import CorruptRecord, decode, encode
from storage.metadata.records import (
    FEATURE_LEVEL,
    AbortTransaction,
    Answered,
    BeginTransaction,
    Deletion,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    RangeDeletion,
    SequenceAdvance,
    SessionEnd,
    SessionStart,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotNamed,
    TakeOver,
)
from storage.metadata.store import IndexEntry, InvalidOperation, Record

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
U64 = st.integers(0, 2**64 - 1)
RECORDS: st.SearchStrategy[LogRecord] = st.one_of(
    st.builds(
        Record,
        key=TEXT,
        value=st.binary(max_size=50),
        version=U64,
        indexes=st.lists(st.builds(IndexEntry, TEXT, TEXT), max_size=3).map(tuple),
        partition_key=st.none() | TEXT,
        session=st.none() | U64,
    ),
    st.builds(Deletion, U64, TEXT),
    st.builds(RangeDeletion, U64, TEXT, TEXT),
    st.builds(SequenceAdvance, U64, U64),
    st.builds(SessionStart, U64, U64, TEXT, U64),
    st.builds(SessionEnd, U64, U64),
    st.builds(FeatureLevel, U64, st.integers(0, FEATURE_LEVEL)),
    st.builds(TakeOver, U64, U64, TEXT, st.none() | TEXT),
    st.builds(
        Answered,
        st.builds(WriteId, U64, U64, U64),
        st.builds(Made, U64, st.lists(st.builds(Run, U64, st.integers(0, 2**32 - 1)), max_size=3).map(tuple)),
    ),
    st.builds(SnapshotNamed, U64, U64, st.integers(0, 2**32 - 1), U64),
    st.builds(BeginTransaction, st.none() | TEXT),
    st.builds(EndTransaction),
    st.builds(AbortTransaction, st.none() | TEXT),
    st.builds(SnapshotHeader, U64, U64, st.integers(0, 2**32 - 1)),
    st.builds(SnapshotFooter, U64),
)


@given(st.lists(RECORDS, max_size=5))
def test_records_survive_their_encoding(records: list[LogRecord]) -> None:
    """R1: what is written is read; absent texts stay absent and empty ones empty."""
    assert list(decode(b"".join(map(encode, records)))) == records


@given(RECORDS, st.data())
def test_a_record_cut_short_is_refused(record: LogRecord, data: st.DataObject) -> None:
    encoded = encode(record)
    size = data.draw(st.integers(1, len(encoded) - 1))
    with pytest.raises(CorruptRecord):
        list(decode(encoded[:size]))


@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(CorruptRecord):
        list(decode(body))


def test_marker_records_are_kip_868s() -> None:
    """R1: types 23, 24 and 25, version 0, name and reason as tagged field 0."""
    assert encode(BeginTransaction()) == struct.pack(">BBIB", 23, 0, 1, 0)
    assert encode(BeginTransaction("ab")) == struct.pack(">BBIBBI2s", 23, 0, 8, 1, 0, 2, b"ab")
    assert encode(EndTransaction()) == struct.pack(">BBIB", 24, 0, 1, 0)
    assert encode(AbortTransaction("")) == struct.pack(">BBIBBI", 25, 0, 6, 1, 0, 0)


@pytest.mark.parametrize("make", [BeginTransaction, AbortTransaction])
def test_a_long_name_or_reason_is_refused(make: type[BeginTransaction | AbortTransaction]) -> None:
    """R2: the writer refuses more than 255 bytes of UTF-8; absent decodes as None, not as ""."""
    assert list(decode(encode(make("é" * 127 + "e")))) == [make("é" * 127 + "e")]
    with pytest.raises(InvalidOperation):
        encode(make("é" * 128))
    assert list(decode(encode(make()))) == [make(None)]


def test_an_unknown_tag_is_skipped() -> None:
    """R1: records are flexible, so a later release may add fields that an older one need not know."""
    known = encode(Record("/k", b"v", 7, (IndexEntry("i", "x"),)))
    extended = bytearray(known)
    added = struct.pack(">BI3s", 200, 3, b"new")
    extended[2:6] = struct.pack(">I", len(known) - 6 + len(added))
    extended[6 + 14 + 2 + 1] += 1
    assert list(decode(bytes(extended) + added)) == [Record("/k", b"v", 7, (IndexEntry("i", "x"),))]


@pytest.mark.parametrize("kind", [2, 3, 13])
def test_a_key_or_name_beyond_its_record_is_refused(kind: int) -> None:
    """C22: a deletion or take-over whose text claims more bytes than there are is refused, not read past its end."""
    fixed = {2: struct.pack(">QH", 1, 500), 3: struct.pack(">QHH", 1, 500, 500), 13: struct.pack(">QQH", 1, 1, 500)}
    with pytest.raises(CorruptRecord, match="pass its end"):
        list(decode(struct.pack(">BBI", kind, 0, len(fixed[kind]) + 1) + fixed[kind] + b"\0"))


def test_a_session_without_an_owner_is_as_before() -> None:
    """C22: the release before reads it, because it has no field that this one does not know."""
    assert encode(SessionStart(7, 5000)) == struct.pack(">BBIQQB", 5, 0, 17, 7, 5000, 0)


@pytest.mark.parametrize(
    ("kind", "version", "reason"), [(99, 0, "record type 99, version 0"), (1, 1, "record type 1, version 1")]
)
def test_an_unknown_record_is_refused(kind: int, version: int, reason: str) -> None:
    with pytest.raises(CorruptRecord, match=reason):
        list(decode(struct.pack(">BBIB", kind, version, 1, 0)))


def test_a_higher_feature_level_is_refused() -> None:
    """R25: the following records could mean what this release does not know."""
    with pytest.raises(CorruptRecord, match=f"feature level {FEATURE_LEVEL + 1}"):
        list(decode(encode(FeatureLevel(1, FEATURE_LEVEL + 1))))
