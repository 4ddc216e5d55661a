"""Redelivery: the delays, and the record of delivered messages."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.client.redelivery import STALE_DEADLINES_MAX, BackoffPolicy, EntryKey, Redeliveries
from tidewire.protocol.positions import MessageId


def test_waits_grow_up_to_a_bound_and_jitter_by_a_part() -> None:
    policy = BackoffPolicy(1.0, 10.0, 3.0, jitter_percent=0)
    assert [policy.delay_seconds(count, Random(1)) for count in range(5)] == [1.0, 3.0, 9.0, 10.0, 10.0]
    assert policy.delay_seconds(10**9, Random(1)) == 10.0
    assert [BackoffPolicy.fixed(0.0).delay_seconds(count, Random(1)) for count in (0, 10**9)] == [0.0, 0.0]
    jittered = {BackoffPolicy.exponential(100.0, 100.0).delay_seconds(0, Random(seed)) for seed in range(50)}
    assert len(jittered) > 10
    assert all(95 <= delay <= 105 for delay in jittered)


@pytest.mark.parametrize("values", [(2.0, 1.0), (-1.0, 1.0), (1.0, 1.0, 0.5), (1.0, 1.0, 2.0, 101.0)])
def test_waits_that_make_no_sense_are_refused(values: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"interval_seconds|multiplier|jitter_percent"):
        BackoffPolicy(*values)


def message(entry: int, index: int = -1, segment: int = 0) -> MessageId:
    return MessageId(segment, 7, entry, index, 0 if index < 0 else 10)


def test_an_entry_is_asked_for_once_and_then_forgotten() -> None:
    book = Redeliveries()
    assert [book.next_due] == [None]
    assert book.hold(message(1, 0), 5.0)
    assert not book.hold(message(1, 1), 6.0)
    assert book.hold(message(2), 4.0)
    assert (len(book), book.next_due) == (3, 4.0)
    assert list(book.take_due(3.9)) == []
    assert list(book.take_due(5.0)) == [EntryKey(0, 7, 2), EntryKey(0, 7, 1)]
    # The other message of the batch comes with it.
    assert [len(book), book.next_due] == [0, None]


def test_what_is_settled_is_not_asked_for_and_a_later_word_counts() -> None:
    book = Redeliveries()
    book.hold(message(1), 1.0)
    book.hold(message(1), 9.0)
    book.hold(message(2, 0), 2.0)
    book.hold(message(2, 1), 3.0)
    book.hold(message(3, 4, segment=1), 4.0)
    book.settle(message(2, 0))
    book.settle(message(5))
    assert book.next_due == 3.0
    book.settle(message(2))
    assert book.next_due == 4.0
    book.forget_segment(1)
    assert book.next_due == 9.0
    assert list(book.take_due(9.0)) == [EntryKey(0, 7, 1)]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 20), st.booleans()), max_size=300))
def test_it_holds_what_a_plain_book_holds_and_little_more(steps: list[tuple[int, int, int, bool]]) -> None:
    book = Redeliveries()
    plain: dict[tuple[int, int], int] = {}
    for entry, index, due, held in steps:
        if held:
            first = book.hold(message(entry, index), due)
            plain[entry, index] = due
            assert first == (book.next_due == due and sum(other == due for other in plain.values()) == 1) or not first
        else:
            book.settle(message(entry, index))
            plain.pop((entry, index), None)
        assert len(book) == len(plain)
        assert book.next_due == min(plain.values(), default=None)
        assert len(book._deadlines) <= 2 * len(plain) + STALE_DEADLINES_MAX + 1
    due_now = {entry for (entry, _), due in plain.items() if due <= 10}
    assert {key.entry_id for key in book.take_due(10)} == due_now
    assert len(book) == sum(entry not in due_now for entry, _ in plain)
