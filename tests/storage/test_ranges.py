"""Ranges and batch bits, compared with a naive model: the set of acknowledged messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import ranges
from storage.position import EARLIEST, Position
from storage.ranges import Acknowledged, EntryRanges, bits_from_words, bits_within, words_from_bits
from tests.support.stream import MemoryStream

BATCH = 3
"""Messages per entry of the model."""


def three_ledgers() -> MemoryStream:
    stream = MemoryStream()
    for length in (4, 5, 1):
        for _ in range(length):
            stream.append(messages=BATCH)
        stream.roll()
    return stream


def test_mark_delete_runs_over_ledger_ends() -> None:
    """Filling the first gap carries the mark-delete through ranges in several ledgers."""
    stream = three_ledgers()
    acknowledged = Acknowledged(EARLIEST, stream.next_after)
    for position in stream.positions[1:]:
        assert acknowledged.acknowledge(position)
    assert acknowledged.mark_delete == EARLIEST
    assert len(acknowledged.ranges) == 3, "one range per ledger"
    acknowledged.acknowledge(stream.positions[0])
    assert acknowledged.mark_delete == stream.last_position
    assert acknowledged.size == 0


def test_ranges_merge_on_both_sides() -> None:
    entries = EntryRanges()
    for entry in (1, 3, 2, 7, 6):
        assert entries.add(Position(5, entry))
    assert list(entries) == [(Position(5, 1), Position(5, 3)), (Position(5, 6), Position(5, 7))]
    assert not entries.add(Position(5, 2))
    assert entries.entries == 5
    assert Position(5, 4) not in entries
    assert entries.touches(Position(5, 5))
    assert not entries.touches(Position(6, 0)), "the first entry of another ledger continues nothing"


def test_range_in_a_trimmed_ledger_is_no_hole() -> None:
    """A stored range whose ledger is gone neither holds the mark-delete back nor stays in memory."""
    stream = MemoryStream(first_ledger=20)
    stream.append()
    stream.append()
    stored = [(Position(3, 2), Position(3, 4)), (Position(20, 0), Position(20, 0))]
    acknowledged = Acknowledged(EARLIEST, stream.next_after, stored)
    assert acknowledged.mark_delete == Position(20, 0)
    assert acknowledged.size == 0


def test_cumulative_into_a_range_ends_behind_it() -> None:
    stream = three_ledgers()
    acknowledged = Acknowledged(EARLIEST, stream.next_after)
    acknowledged.acknowledge(Position(7, 2))
    acknowledged.acknowledge(Position(7, 3))
    acknowledged.acknowledge_cumulative(Position(7, 1))
    assert acknowledged.mark_delete == Position(7, 3)
    acknowledged.acknowledge_cumulative(Position(7, 0))
    assert acknowledged.mark_delete == Position(7, 3), "it never goes back"
    acknowledged.reset(Position(7, 0))
    assert acknowledged.mark_delete == Position(7, 0)


def test_batch_is_acknowledged_with_its_last_bit() -> None:
    """D12: bits only go from 1 to 0, whoever sends them, and the last one acknowledges the entry."""
    stream = three_ledgers()
    acknowledged = Acknowledged(EARLIEST, stream.next_after)
    first = stream.positions[0]
    acknowledged.acknowledge_batch(first, 0b110)
    acknowledged.acknowledge_batch(first, 0b101)
    assert acknowledged.remaining_bits(first) == 0b100
    assert acknowledged.mark_delete < first
    acknowledged.acknowledge_batch(first, 0b011)
    assert acknowledged.mark_delete == first
    assert acknowledged.remaining_bits(first) is None


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that acknowledges every other entry is stopped; filling gaps still works."""
    stream = MemoryStream()
    for _ in range(40):
        stream.append()
    monkeypatch.setattr(ranges, "RANGES_MAX", 5)
    acknowledged = Acknowledged(EARLIEST, stream.next_after)
    taken = [acknowledged.acknowledge(position) for position in stream.positions[1::2]]
    assert taken == [True] * 5 + [False] * 15
    assert not acknowledged.acknowledge_batch(stream.positions[30], 0b1)
    assert acknowledged.acknowledge(stream.positions[2]), "an entry between ranges needs no room"
    assert acknowledged.acknowledge(stream.positions[0])
    assert acknowledged.mark_delete == stream.positions[3]


def test_ack_set_words_are_signed_and_trimmed() -> None:
    assert words_from_bits(0) == ()
    assert words_from_bits(1 << 63) == (-(2**63),)
    assert words_from_bits(1 << 64) == (0, 1)
    assert bits_from_words([-1]) == 2**64 - 1
    assert bits_from_words([2**64 - 1]) == 2**64 - 1, "unsigned words mean the same"


def test_words_become_bits_in_linear_time() -> None:
    """E7, E8: quadratic work on this many words would take minutes."""
    words = [-1] * 300_000
    assert bits_from_words(words) == 2 ** (64 * len(words)) - 1


def test_bits_above_the_batch_are_void_whatever_size_is_claimed() -> None:
    assert bits_within(0b1111, 2) == 0b11
    assert bits_within(0b1111, 4) == 0b1111
    assert bits_within(0b1111, 0) == bits_within(0b1111, -1) == 0b1111, "the size is not known"
    assert bits_within(0b1111, 2**62) == 0b1111, "and no mask of that size is made"


@given(st.integers(min_value=0, max_value=2**200))
def test_ack_set_round_trip(bits: int) -> None:
    words = words_from_bits(bits)
    assert bits_from_words(words) == bits
    assert not words or words[-1] != 0


steps = st.one_of(
    st.tuples(st.just("entry"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("batch"), st.integers(0, 9), st.integers(0, 2**BATCH - 1)),
    st.tuples(st.just("cumulative"), st.integers(0, 9), st.just(0)),
)


@given(st.lists(steps, max_size=40))
def test_any_sequence_matches_the_set_of_messages(sequence: list[tuple[str, int, int]]) -> None:
    """D12: after any acknowledgements the state is that of a plain set."""
    stream = three_ledgers()
    positions = stream.positions
    acknowledged = Acknowledged(EARLIEST, stream.next_after)
    left = {(position, message) for position in positions for message in range(BATCH)}
    for kind, number, bits in sequence:
        position = positions[number]
        before = acknowledged.mark_delete
        if kind == "entry":
            assert acknowledged.acknowledge(position)
            left -= {(position, message) for message in range(BATCH)}
        elif kind == "batch":
            assert acknowledged.acknowledge_batch(position, bits)
            left -= {(position, message) for message in range(BATCH) if not bits >> message & 1}
        else:
            acknowledged.acknowledge_cumulative(position)
            left = {(place, message) for place, message in left if place > position}
        assert acknowledged.mark_delete >= before

        holes = [place for place in positions if any(spot == place for spot, _ in left)]
        full = sum(1 << message for message in range(BATCH))
        for place in positions:
            bits_left = sum(1 << message for message in range(BATCH) if (place, message) in left)
            assert acknowledged.is_acknowledged(place) == (bits_left == 0)
            partly = bits_left if 0 < bits_left < full else None
            assert acknowledged.remaining_bits(place) in ({partly} if partly else {None, full})
            higher = [hole for hole in holes if hole > place]
            assert acknowledged.next_unacknowledged(place) == (
                higher[0] if higher else stream.next_after(positions[-1])
            )
        done = [place for place in positions if not holes or place < holes[0]]
        assert acknowledged.mark_delete == (done[-1] if done else EARLIEST)
        above = [place for place in positions if place > acknowledged.mark_delete and place not in holes]
        assert acknowledged.ranges.entries == len(above)
        reread = Acknowledged(
            acknowledged.mark_delete, stream.next_after, list(acknowledged.ranges), dict(acknowledged.batches())
        )
        assert list(reread.ranges) == list(acknowledged.ranges)
        assert reread.size == acknowledged.size
        assert reread.highest == acknowledged.highest >= max(above, default=EARLIEST)
