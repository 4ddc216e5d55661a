"""Which messages are reserved, and by whom, as tables."""

import pytest

from storage.position import Position
from storage.ranges import EntryAck
from txn.headers import v5_id
from txn.reservations import Reservations, overlap

ONE, TWO = v5_id(0, 1), v5_id(0, 2)


def at(entry: int, remaining: int = 0, size: int = 0) -> EntryAck:
    return EntryAck(Position(7, entry), remaining, size)


@pytest.mark.parametrize(
    ("first", "second", "meet"),
    [
        (at(1), at(1), True),
        (at(1), at(1, 0b110, 3), True),
        (at(1, 0b110, 3), at(1, 0b101, 3), False),
        (at(1, 0b110, 3), at(1, 0b110, 3), True),
        (at(1, 0b011, 3), at(1, 0b011, 3), True),  # The last message: no bit of either says so but the size.
        (at(1, 0b011, 3), at(1, 0b110, 3), False),
        (at(1, 0b110), at(1, 0b101), False),
        (at(1, 0b110), at(1, 0b100), True),
        (at(1, 0b1110, 3), at(1, 0b1110, 3), True),  # Bits above the batch stand for no message.
    ],
)
def test_which_acknowledgements_share_a_message(first: EntryAck, second: EntryAck, meet: bool) -> None:
    """T24, D12: those that have a message in common."""
    assert overlap(first, second) is overlap(second, first) is meet


@pytest.mark.parametrize(
    ("held", "held_cumulative", "asked", "asked_cumulative", "met"),
    [
        (at(3), False, at(3), False, 3),
        (at(3), False, at(4), False, None),
        (at(3, 0b10, 2), False, at(3, 0b01, 2), False, None),
        (at(3), True, at(2), False, 2),
        (at(3), True, at(3), False, 3),
        (at(3), True, at(4), False, None),
        (at(3, 0b10, 2), True, at(3, 0b01, 2), False, None),
        (at(3, 0b10, 2), True, at(3, 0b10, 2), False, 3),
        (at(3), True, at(5), True, 3),
        (at(3), True, at(1), True, 1),
        (at(3), False, at(5), True, 3),
        (at(3), False, at(2), True, None),
        (at(3, 0b10, 2), False, at(3, 0b01, 2), True, None),
        (at(3, 0b10, 2), False, at(3, 0b00, 2), True, 3),
    ],
)
def test_what_meets_what(
    held: EntryAck, held_cumulative: bool, asked: EntryAck, asked_cumulative: bool, met: int | None
) -> None:
    """T24, E5: within one transaction a cumulative acknowledgement conflicts with nothing."""
    reserved = Reservations()
    reserved.reserve(ONE, [held], cumulative=held_cumulative)
    found = reserved.conflict(TWO, [at(100), asked] if not asked_cumulative else [asked], cumulative=asked_cumulative)
    assert found == (None if met is None else Position(7, met))
    assert reserved.conflict(ONE, [asked], cumulative=asked_cumulative) == (None if asked_cumulative else found)
    reserved.release(ONE)
    assert reserved.conflict(TWO, [asked], cumulative=asked_cumulative) is None
    assert reserved.entries == 0


def test_what_may_be_sent() -> None:
    """D12: the remaining messages of a batch, whoever reserved the others."""
    reserved = Reservations()
    assert reserved.unreserved(Position(7, 0)) is None
    reserved.reserve(ONE, [at(5, 0b110, 3), at(8)], cumulative=False)
    reserved.reserve(TWO, [at(5, 0b101, 3)], cumulative=False)
    assert [reserved.unreserved(Position(7, entry)) for entry in (4, 5, 6, 8)] == [None, 0b100, None, 0]
    reserved.reserve(ONE, [at(5, 0b011, 3)], cumulative=False)
    assert reserved.unreserved(Position(7, 5)) == 0
    reserved.release(ONE)
    assert [reserved.unreserved(Position(7, entry)) for entry in (5, 8)] == [0b101, None]
    reserved.release(TWO)
    reserved.reserve(ONE, [at(3, 0b100, 3)], cumulative=True)
    reserved.reserve(ONE, [at(2)], cumulative=True)
    assert [reserved.unreserved(Position(7, entry)) for entry in (2, 3, 4)] == [0, 0b100, None]
    reserved.reserve(ONE, [at(4)], cumulative=True)
    assert [reserved.unreserved(Position(7, entry)) for entry in (3, 4, 5)] == [0, 0, None]
