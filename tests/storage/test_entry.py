"""The layout of an entry in a batch: what is read back, and what is refused."""

from itertools import chain

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.entry import CorruptEntry, Entry, EntryFormat, TxnId, decode_entries, encode_entry, extend_checksum
from storage.position import Position

NUMBERS = st.integers(0, 2**63 - 1)
FORMAT_AT, FLAGS_AT = 4, 5
"""Behind the length."""


@given(
    st.lists(
        st.builds(
            lambda payload, count, time, index, txn, form, is_control: Entry(
                Position(0, 0), payload, index, count, time, txn, form, is_control
            ),
            st.binary(max_size=20),
            st.integers(0, 2**32 - 1),
            NUMBERS,
            NUMBERS,
            st.none() | st.builds(TxnId, NUMBERS, NUMBERS),
            st.sampled_from(EntryFormat),
            st.booleans(),
        ),
        max_size=3,
    )
)
def test_entries_are_read_back_as_they_were(entries: list[Entry]) -> None:
    """Format and control flag included."""
    numbered = [entry._replace(position=Position(7, 3 + number)) for number, entry in enumerate(entries)]
    assert list(decode_entries(7, 3, b"".join(chain.from_iterable(map(encode_entry, numbered))))) == numbered


@pytest.mark.parametrize(("at", "value"), [(FORMAT_AT, max(EntryFormat) + 1), (FLAGS_AT, 4), (FLAGS_AT, 0x81)])
def test_an_entry_of_a_later_version_is_refused(at: int, value: int) -> None:
    """E3: a reader that does not know a flag must not show the entry."""
    encoded = bytearray(b"".join(encode_entry(Entry(Position(1, 0), b"a", 0, 1, 0))))
    encoded[at] = value
    with pytest.raises(CorruptEntry, match="unknown f"):
        list(decode_entries(1, 0, bytes(encoded)))


@given(st.binary(max_size=20), st.lists(st.binary(max_size=20), max_size=3))
def test_a_checksum_does_not_depend_on_how_bytes_are_divided(start: bytes, pieces: list[bytes]) -> None:
    """D9: a batch is written in pieces and checked in one."""
    whole = google_crc32c.value(start + b"".join(pieces))
    assert extend_checksum(google_crc32c.value(start), pieces) == whole
