import base64
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import examples
from tidewire.spark.encoding import NO_KEY, ROW_BYTES_MAX, Columns, Rows, encode
from tidewire.spark.errors import UnwritableRow
from tidewire.wire.pulsar.building import message_metadata
from tidewire.wire.pulsar.hashing import key_hash
from tidewire.wire.pulsar.messages import SingleMessage, split_body

TIME = pa.timestamp("us", tz="UTC")
MAP = pa.map_(pa.string(), pa.string())


def read(rows: Rows) -> list[SingleMessage]:
    """Return what a reader reads of them, as a batch."""
    metadata = message_metadata("p", 0, 1)
    metadata.num_messages_in_batch = len(rows)
    return split_body(metadata, bytes(rows.data))


def values(*texts: bytes | None) -> pa.Array:
    return pa.array(texts, pa.binary())


texts = st.text(max_size=20)
times_us = st.integers(0, 2**50)


@settings(max_examples=examples(50))
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary(max_size=300),
            st.none() | texts,
            st.none() | times_us,
            st.none() | st.lists(st.tuples(texts, texts), max_size=3, unique_by=lambda entry: entry[0]),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 3),
)
def test_what_is_encoded_is_read_as_it_was(
    drawn: list[tuple[bytes | None, str | None, int | None, list[tuple[str, str]] | None]], skipped: int
) -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([row[0] for row in drawn], pa.binary()),
            pa.array([row[1] for row in drawn], pa.string()),
            pa.array([row[2] for row in drawn], pa.int64()).view(TIME),
            pa.array([row[3] for row in drawn], MAP),
        ],
        ["value", "key", "event_time", "properties"],
    )
    # A part of a larger one, as when a record batch is divided.
    batch, drawn = batch.slice(skipped), drawn[skipped:]
    if not drawn:
        return
    rows = encode(Columns(*batch.columns))
    messages = read(rows)
    assert [
        (None if one.null_value else one.value, one.key, one.event_time_ms, one.properties) for one in messages
    ] == [
        (value, key, None if time is None else time // 1000 or None, dict(properties or ()))
        for value, key, time, properties in drawn
    ]
    assert rows.hashes.tolist() == [NO_KEY if key is None else key_hash(key) for _, key, _, _ in drawn]
    assert len(rows) == len(drawn)
    assert rows.size_bytes == len(rows.data)


def test_values_alone_make_messages() -> None:
    rows = encode(Columns(values(b"a", b"", None)))
    assert [(one.value, one.null_value, one.key) for one in read(rows)] == [
        (b"a", False, None),
        (b"", False, None),
        (b"", True, None),
    ]
    assert rows.hashes.tolist() == [NO_KEY] * 3


def test_no_rows_make_no_messages() -> None:
    rows = encode(Columns(values(), pa.array([], pa.string())))
    assert (len(rows), rows.size_bytes) == (0, 0)


def test_keys_of_bytes_stand_in_base64_and_say_so() -> None:
    rows = encode(Columns(values(b"a", b"b"), values(b"\xff\x00", None)))
    first, second = read(rows)
    text = base64.b64encode(b"\xff\x00").decode()
    assert (first.key, first.key_is_base64) == (text, True)
    assert (second.key, second.key_is_base64) == (None, False)
    assert rows.hashes.tolist() == [key_hash(text), NO_KEY]


def test_a_part_and_a_selection_are_runs_of_bytes_of_their_own() -> None:
    rows = encode(Columns(values(*[b"%d" % number for number in range(10)])))
    assert [one.value for one in read(rows.part(3, 5))] == [b"3", b"4"]
    picked = rows.part(2, 9).select(np.array([5, 0]))
    assert [one.value for one in read(picked)] == [b"7", b"2"]
    assert rows.part(3, 5).size_bytes == len(rows.part(3, 5).data)


def test_a_row_may_be_as_large_as_a_message_and_no_larger() -> None:
    overhead = encode(Columns(values(bytes(ROW_BYTES_MAX - 100)))).size_bytes - (ROW_BYTES_MAX - 100)
    largest = values(b"small", bytes(ROW_BYTES_MAX - overhead))
    assert len(read(encode(Columns(largest)))[1].value) == ROW_BYTES_MAX - overhead
    with pytest.raises(UnwritableRow, match=f"a row without a key takes {ROW_BYTES_MAX + 1} bytes as a message, "):
        encode(Columns(values(b"small", bytes(ROW_BYTES_MAX - overhead + 1))))
    with pytest.raises(UnwritableRow, match="the row with the key 'k1' takes"):
        encode(Columns(values(b"small", bytes(ROW_BYTES_MAX)), pa.array(["k0", "k1"])))


def test_times_before_1970_are_refused_by_row() -> None:
    times = pa.array([datetime(2013, 1, 1, tzinfo=UTC), None, datetime(1969, 12, 31, 23, tzinfo=UTC)], TIME)
    with pytest.raises(UnwritableRow, match=r"^the row with the key 'k2' has an event_time before 1970: 1969-12-31 23"):
        encode(Columns(values(b"a", b"b", b"c"), pa.array(["k0", "k1", "k2"]), times))
    with pytest.raises(UnwritableRow, match=r"^a row without a key has an event_time before 1970"):
        encode(Columns(values(b"a"), None, times.slice(2)))


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_properties_without_a_text_are_refused_by_row(cut: int) -> None:
    """Also in a part of an array, as Spark's batches are halved."""
    maps = [[("a", "1"), ("b", "2")], [], None, [("c", "3"), ("d", None)], [("e", "4")]]
    columns = Columns(
        values(*[b"v"] * 5).slice(cut),
        pa.array([f"k{n}" for n in range(5)]).slice(cut),
        None,
        pa.array(maps, MAP).slice(cut),
    )
    with pytest.raises(UnwritableRow, match=r"^the row with the key 'k3' has a property 'd' without a text; leave"):
        encode(columns)


def test_parts_of_rows_have_their_own_properties() -> None:
    maps = pa.array([[("a", "1"), ("b", "2")], [], None, [("c", "3")], [("bad", None)]], MAP)
    found = read(encode(Columns(values(b"v", b"w", b"x", b"y", b"z").slice(1, 3), None, None, maps.slice(1, 3))))
    assert [message.properties for message in found] == [{}, {}, {"c": "3"}]
