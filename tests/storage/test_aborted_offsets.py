"""The index of aborted transactions of a log with markers: its bytes, its damage, and searches in it."""

from collections.abc import Iterable, Iterator

import hypothesis.strategies as st
import pytest
from hypothesis import given

from storage.aborted_offsets import (
    ENTRY_SIZE,
    AbortedOffsets,
    UnknownIndexVersion,
    cut_at,
    decode,
    decode_at,
    encode,
    is_well_formed,
    searched,
)

# P1: 0, 1, C3; P2: 2, 4, A5; P1: 6, 8, A9; P2: 7, C10.
SECOND = AbortedOffsets(2, 2, 5, 6)
FIRST = AbortedOffsets(1, 6, 9, 7)


def whole(entries: list[AbortedOffsets]) -> bytes:
    return b"".join(map(encode, entries))


@st.composite
def some_entries(draw: st.DrawFn) -> list[AbortedOffsets]:
    """Entries as aborts leave them: markers rise, and last stable offsets do not fall."""
    entries, marker, stable = [], 0, 0
    for _ in range(draw(st.integers(0, 9))):
        marker += draw(st.integers(1, 9))
        stable = draw(st.integers(stable, marker + 1))
        entries.append(AbortedOffsets(draw(st.integers(0, 4)), draw(st.integers(0, marker)), marker, stable))
    return entries


def test_an_entry_has_the_bytes_of_kafka() -> None:
    """K4, K9: version, producer id, first, last and last stable offset, 34 bytes."""
    assert encode(SECOND) == bytes.fromhex(
        "0000 0000000000000002 0000000000000002 0000000000000005 0000000000000006".replace(" ", "")
    )
    assert len(encode(SECOND)) == ENTRY_SIZE == 34


@given(some_entries())
def test_what_was_written_is_read(entries: list[AbortedOffsets]) -> None:
    """K12: byte for byte."""
    assert decode(whole(entries)) == (entries, True)


@given(some_entries(), st.data())
def test_a_torn_end_is_cut_off(entries: list[AbortedOffsets], data: st.DataObject) -> None:
    """K18: whole entries before the tear stay, and the tear is told."""
    written = whole(entries)
    cut = data.draw(st.integers(0, len(written)))
    assert decode(written[:cut]) == (entries[: cut // ENTRY_SIZE], cut % ENTRY_SIZE == 0)


@pytest.mark.parametrize(
    "wrong",
    [
        AbortedOffsets(1, 10, 9, 7),  # it ends before it begins
        AbortedOffsets(1, -1, 9, 7),
        AbortedOffsets(1, 6, 9, 5),  # the last stable offset goes back
        AbortedOffsets(1, 6, 9, 11),  # it passes the marker
    ],
)
def test_an_entry_that_no_abort_leaves_is_damage(wrong: AbortedOffsets) -> None:
    """K10, K18: it and what is behind it are made again from the log."""
    assert decode(whole([SECOND, wrong, FIRST])) == ([SECOND], False)


def test_entries_continue_those_of_the_ledger_before() -> None:
    """K10: last stable offsets rise over the ends of ledgers, too."""
    assert decode(encode(SECOND), before=6) == ([SECOND], True)
    assert decode(encode(SECOND), before=7) == ([], False)


def test_a_later_version_is_refused() -> None:
    """K18: not rebuilt, because a later release may know more than the log says."""
    with pytest.raises(UnknownIndexVersion, match="version 1"):
        decode(encode(SECOND) + b"\0\1" + encode(FIRST)[2:])


def test_a_negative_version_is_damage() -> None:
    """K18: no release writes one."""
    assert decode(encode(SECOND) + b"\xff\xff" + encode(FIRST)[2:]) == ([SECOND], False)


def overlapping(indexes: Iterable[Iterable[AbortedOffsets]], start: int, end: int) -> list[AbortedOffsets]:
    return [entry for entry, is_hit in searched(indexes, start, end) if is_hit]


def test_an_index_is_checked_and_read_without_decoding_all_of_it() -> None:
    """E7, K18: its size and its versions tell whether it is whole."""
    index = encode(SECOND) + encode(FIRST)
    assert is_well_formed(b"")
    assert is_well_formed(index)
    assert [decode_at(bytearray(index), number) for number in range(2)] == [SECOND, FIRST]
    assert not is_well_formed(index[:-1])
    assert not is_well_formed(encode(SECOND) + b"\xff\xff" + encode(FIRST)[2:])
    for later in (b"\0\1", b"\1\0"):
        with pytest.raises(UnknownIndexVersion):
            is_well_formed(encode(SECOND) + later + encode(FIRST)[2:])


@pytest.mark.parametrize(
    ("start", "end", "found"),
    [
        (0, 5, [SECOND]),  # the fetch of the offsets 0 to 4
        (5, 9, [SECOND, FIRST]),  # of 5 to 8
        (6, 7, [FIRST]),
        (0, 2, []),
        (10, 11, []),
    ],
)
def test_a_fetch_gets_the_aborted_transactions_of_its_range(start: int, end: int, found: list[AbortedOffsets]) -> None:
    """K8, K9: the worked example. `end` is exclusive."""
    assert overlapping([[SECOND, FIRST]], start, end) == found
    assert overlapping([[SECOND], [FIRST]], start, end) == found


def test_a_search_ends_where_the_last_stable_offset_has_passed_the_range() -> None:
    """K7: later ledgers are not even opened."""
    opened = []

    def opening() -> Iterator[list[AbortedOffsets]]:
        for index in ([SECOND], [FIRST]):
            opened.append(index)
            yield index

    assert overlapping(opening(), 0, 6) == [SECOND]
    assert opened == [[SECOND]]


def test_a_log_that_was_cut_has_no_later_markers() -> None:
    """K11: entries whose marker is gone leave the index. The caller opens their transactions again."""
    assert cut_at([SECOND, FIRST], 9) == ([SECOND], [FIRST])
    assert cut_at([SECOND, FIRST], 10) == ([SECOND, FIRST], [])
    assert cut_at([SECOND, FIRST], 5) == ([], [SECOND, FIRST])
