"""The memory of a log's producers, against a plain model of it."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from txn.producer_rows import BATCHES_KEPT, NOWHERE, ROW_SIZE, Head, Kept, ProducerRows, RowsDamaged

LARGE = Kept(2**31 - 1, 0, 2**62, 2**62)

producers = st.integers(1, 6)
steps = st.one_of(
    st.tuples(st.just("keep"), producers, st.integers(0, 3)),
    st.tuples(st.just("reset"), producers, st.integers(0, 3)),
    st.tuples(st.just("open"), producers, st.integers(0, 99)),
    st.tuples(st.just("close"), producers, st.just(0)),
    st.tuples(st.just("remove"), st.just(0), st.integers(0, 40)),
)


@given(st.lists(steps, max_size=40))
def test_rows_are_what_was_written(taken: list[tuple[str, int, int]]) -> None:
    """K24, K26: also in a copy, as the next owner has it."""
    rows = ProducerRows()
    model: dict[int, tuple[Head, list[Kept], tuple[int, int, int]]] = {}
    for moment, (step, producer, number) in enumerate(taken):
        head, batches, place = model.get(producer, (Head(producer, 0, 0, -1, 0), [], NOWHERE))
        match step:
            case "keep":
                made = Kept(moment, number, 2**40 + moment, moment)
                rows.keep(head._replace(last_ms=moment), made)
                batches = [*batches, made][-BATCHES_KEPT:]
                model[producer] = head._replace(last_ms=moment, batches=len(batches)), batches, place
            case "reset":
                head = Head(producer, number, 0, number, moment)
                rows.put(head)
                model[producer] = head, [], place
            case "open" | "close" if producer in model:
                place = (number, moment, 0) if step == "open" else NOWHERE
                rows.open(producer, *place)
                model[producer] = head, batches, place
            case "remove":
                closed = {known for known, row in model.items() if row[2] == NOWHERE}
                rows.remove(closed.__contains__, number)
                model = {known: row for known, row in model.items() if row[0].last_ms >= number or row[2] != NOWHERE}
            case _:
                pass
    for copy in (rows, ProducerRows(bytes(rows.data))):
        assert set(copy) == set(model)
        assert len(copy.data) == len(model) * ROW_SIZE
        for producer, (head, batches, _place) in model.items():
            assert copy.head(producer) == head
            assert copy.batches(head) == batches
            assert not batches or copy.last_sequence(head) == batches[-1].last_sequence
        opened = sorted((place, producer) for producer, (_, _, place) in model.items() if place != NOWHERE)
        assert sorted(((o, ledger, entry), known) for known, o, ledger, entry in copy.opened()) == opened
        assert [each[1] for each in copy.opened()] == [place[0] for place, _ in opened]
        assert copy.head(99) is None


def test_the_largest_numbers_have_room() -> None:
    """K24, K30: the largest producer id, epoch, sequence and offset fit in a row of a snapshot."""
    rows = ProducerRows()
    head = Head(2**63 - 1, 2**15 - 1, 0, 2**31 - 1, 2**63 - 1)
    rows.keep(head, LARGE)
    rows.open(head.producer_id, 2**63 - 1, 2**63 - 1, 2**63 - 1)
    assert rows.batches(head._replace(batches=1)) == [LARGE]
    assert rows.opened() == [(2**63 - 1,) * 4]


def test_what_is_no_row_is_refused() -> None:
    """E10: a part of a row, two rows of one producer, and more batches than there is room for."""
    rows = ProducerRows()
    rows.put(Head(1, 0, 0, -1, 0))
    good = bytes(rows.data)
    for damaged in (good[:-1], good * 2, good[:11] + b"\x06" + good[12:]):
        with pytest.raises(RowsDamaged):
            ProducerRows(damaged)
