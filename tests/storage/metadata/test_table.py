"""Records by key: what goes in comes out, in order, and costs the garbage collector nothing."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata.store import IndexEntry, Record
from storage.metadata.table import RecordTable, SortedSet

PLAIN = Record("/a", b"1", 1)
FULL = Record("/b", b"2", 2, (IndexEntry("i", "x"), IndexEntry("j", "")), "p", 7)


def test_records_come_back_as_they_were() -> None:
    """M1: all fields have their own types; this includes what a write replaced or removed."""
    table = RecordTable()
    assert table.put(FULL) is None
    assert table.put(PLAIN) is None
    assert (table["/b"], table.get("/a"), table.get("/c")) == (FULL, PLAIN, None)
    found = table["/b"]
    assert type(found) is Record
    assert found.indexes[1].name == "j"
    assert table.put(Record("/b", b"3", 3)) == FULL
    assert table.pop("/a") == PLAIN
    assert len(table) == 1
    assert "/b" in table
    assert "/a" not in table
    assert list(table) == ["/b"]
    with pytest.raises(KeyError):
        table.pop("/a")


@pytest.mark.parametrize("settled", [False, True])
def test_keys_are_in_order(settled: bool) -> None:
    """M11: in the order of their UTF-8 bytes, without the end, before and after recovery is over."""
    table = RecordTable()
    if settled:
        table.settle()
    for key in ("/é", "/b", "/\U00010000", "/a", "/c"):
        table.put(Record(key, b"", 1))
    table.pop("/b")
    assert list(table.keys_between("/a", "/é")) == ["/a", "/c"]
    assert list(table.keys_between("/a", "/\U0010ffff")) == ["/a", "/c", "/é", "/\U00010000"]


STEPS = st.lists(st.tuples(st.sampled_from(["add", "remove", "read", "settle"]), st.integers(0, 12)))


@given(STEPS)
def test_sorting_late_is_sorting(steps: list[tuple[str, int]]) -> None:
    """M11: whatever is added, removed and read in any order, both kinds of set have the same content."""
    late, early, model = SortedSet[int](sorts_late=True), SortedSet[int](sorts_late=False), set[int]()
    for step, value in steps:
        if step == "settle":
            late.settle()
        elif step == "read":
            expected = sorted(other for other in model if value <= other < 10)
            assert list(late.between(value, 10)) == list(early.between(value, 10)) == expected
        elif (step == "add") == (value in model):
            continue
        else:
            for ordered in (late, early, model):
                getattr(ordered, step)(value)
        assert len(late) == len(early) == len(model)


def test_the_collector_stops_looking() -> None:
    """A record in the table costs a full collection nothing, with or without index entries."""
    table = RecordTable()
    gc.collect()
    before = len(gc.get_objects())
    for number in range(1000):
        key = f"/{number}"
        table.put(Record(key, b"", number, (IndexEntry("i", key), IndexEntry("j", key)) if number % 2 else ()))
    for _ in range(3):
        # An inner tuple must have been looked at before the one around it can be let go.
        gc.collect()
    assert len(gc.get_objects()) - before < 50
    assert table["/1"].indexes[1] == IndexEntry("j", "/1")
