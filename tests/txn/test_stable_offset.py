"""The last stable offset, alone and together with the index and Kafka's filter in consumers."""

import heapq
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given, settings

from storage.aborted_offsets import AbortedOffsets, searched
from storage.position import Position
from tests.support.examples import examples
from txn.stable_offset import Place, StableOffset


def place(offset: int) -> Place:
    """Return the place of an offset in a log of one ledger with one record in each entry."""
    return Place(offset, Position(7, offset))


def test_the_worked_example() -> None:
    """K1, K2, K5, K9: P1: 0, 1, C3; P2: 2, 4, A5; P1: 6, 8, A9; P2: 7, C10."""
    stable = StableOffset()
    stable.begin(1, place(0))
    assert stable.last_stable(2) == 0
    stable.begin(2, place(2))
    assert stable.end(1, place(3), is_commit=True) is None
    stable.passed(place(3).position)
    assert stable.last_stable(5) == 2
    assert stable.end(2, place(5), is_commit=False) == AbortedOffsets(2, 2, 5, 6)
    stable.passed(place(5).position)
    assert stable.last_stable(6) == 6
    stable.begin(1, place(6))
    stable.begin(2, place(7))
    assert stable.end(1, place(9), is_commit=False) == AbortedOffsets(1, 6, 9, 7)
    stable.passed(place(9).position)
    assert stable.last_stable(10) == 7
    assert stable.end(2, place(10), is_commit=True) is None
    stable.passed(place(10).position)
    assert stable.last_stable(11) == 11


def test_a_marker_counts_when_it_is_durable() -> None:
    """K19: until then its transaction holds the offset back."""
    stable = StableOffset()
    stable.begin(1, place(4))
    stable.end(1, place(6), is_commit=True)
    assert stable.last_stable(6) == 4
    stable.passed(place(5).position)
    assert stable.last_stable(6) == 4
    stable.passed(place(6).position)
    assert stable.last_stable(7) == 7


def test_a_record_is_held_until_the_marker_of_its_transaction_is_durable() -> None:
    """K19, K22: a producer's id is used again before its last marker is durable."""
    stable = StableOffset()
    stable.begin(1, place(0))
    stable.end(1, place(2), is_commit=False)
    stable.begin(2, place(3))
    stable.begin(1, place(4))
    assert [stable.holds(1, offset) for offset in (0, 1, 4, 5)] == [True] * 4
    assert [stable.holds(2, offset) for offset in (2, 3)] == [False, True]
    stable.passed(place(2).position)
    assert [stable.holds(1, offset) for offset in (0, 1, 4, 5)] == [False, False, True, True]
    stable.end(1, place(6), is_commit=True)
    assert [stable.holds(1, offset) for offset in (1, 4)] == [False, True]
    stable.passed(place(6).position)
    assert not stable.holds(1, 4)


def test_a_later_transaction_that_is_durable_first_waits_for_the_earlier_one() -> None:
    """K19: the earlier marker is behind the later one, and neither is durable."""
    stable = StableOffset()
    stable.begin(1, place(0))
    stable.begin(2, place(1))
    stable.end(2, place(2), is_commit=True)
    stable.end(1, place(3), is_commit=True)
    assert stable.last_stable(2) == 0
    stable.passed(place(2).position)
    assert stable.last_stable(3) == 0
    stable.passed(place(3).position)
    assert stable.last_stable(4) == 4


def test_the_stable_offset_is_not_above_the_high_watermark() -> None:
    """K2: what is not durable is not stable, transaction or not."""
    assert StableOffset().last_stable(9) == 9
    stable = StableOffset()
    stable.begin(1, place(9))
    assert stable.last_stable(5) == 5


def test_a_marker_without_a_transaction_ends_nothing() -> None:
    """K27: a repeated abort adds no entry."""
    stable = StableOffset()
    assert stable.end(1, place(5), is_commit=False) is None
    assert stable.last_stable(6) == 6
    assert stable.open_transactions == {}
    assert stable.first_of(1) is None


class Stored(NamedTuple):
    """One offset of a drawn log."""

    producer: int
    marker: bool | None
    """Whether a marker commits; None for a record."""


@st.composite
def logs(draw: st.DrawFn) -> list[Stored]:
    """Records of interleaved transactions of a few producers, with markers, and some transactions left open."""
    log: list[Stored] = []
    open_producers: set[int] = set()
    for _ in range(draw(st.integers(1, 30))):
        producer = draw(st.integers(1, 3))
        if producer in open_producers and draw(st.booleans()):
            open_producers.discard(producer)
            log.append(Stored(producer, draw(st.booleans())))
        else:
            open_producers.add(producer)
            log.append(Stored(producer, None))
    return log


def shown_to_consumer(log: list[Stored], aborted: list[AbortedOffsets], start: int, end: int) -> list[int]:
    """The offsets that Kafka's consumers show of a fetch: the filter of their protocol (K13)."""
    waiting = [(entry.first, entry.producer_id) for entry in aborted]
    heapq.heapify(waiting)
    hidden: set[int] = set()
    shown = []
    for offset in range(start, end):
        stored = log[offset]
        while waiting and waiting[0][0] <= offset:
            hidden.add(heapq.heappop(waiting)[1])
        if stored.marker is not None:
            if stored.marker is False:
                hidden.discard(stored.producer)
        elif stored.producer not in hidden:
            shown.append(offset)
    return shown


@settings(max_examples=examples(300))
@given(log=logs(), roll=st.integers(1, 9), data=st.data())
def test_every_fetch_shows_what_was_committed(log: list[Stored], roll: int, data: st.DataObject) -> None:
    """K3, K7, K8, K10, K13, K14, K15, K16: wherever it begins and ends, in ledgers of any length.

    Producer ids are used again, so an id is aborted, committed and aborted in one fetch.
    """
    stable = StableOffset()
    indexes: list[list[AbortedOffsets]] = [[] for _ in range(len(log) // roll + 1)]
    fates: dict[int, bool] = {}
    records: dict[int, list[int]] = {}
    before = 0
    for offset, stored in enumerate(log):
        if stored.marker is None:
            if stable.first_of(stored.producer) is None:
                stable.begin(stored.producer, place(offset))
            records.setdefault(stored.producer, []).append(offset)
        else:
            entry = stable.end(stored.producer, place(offset), is_commit=stored.marker)
            fates |= dict.fromkeys(records.pop(stored.producer, ()), stored.marker)
            if entry is not None:
                indexes[offset // roll].append(entry)
        stable.passed(place(offset).position)
        now = stable.last_stable(offset + 1)
        undecided = [first for open_records in records.values() for first in open_records]
        assert before <= now == min(undecided, default=offset + 1)
        assert stable.readable(place(offset).position) == Position(7, now - 1)
        before = now
    start = data.draw(st.integers(0, before))
    end = data.draw(st.integers(start, before))
    aborted = [one for one, is_hit in searched(indexes[start // roll :], start, end) if is_hit]
    committed = [offset for offset in range(start, end) if fates.get(offset)]
    assert shown_to_consumer(log, aborted, start, end) == committed
