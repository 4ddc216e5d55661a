"""What a record keeps although this release does not know it, as bytes in and bytes out."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from storage.ledger_record import LedgerInfo, ManagedLedgerRecord
from storage.unknown_fields import columns_after, restored, restored_columns, unknown_in
from storage.writer import Writer

names = st.text(max_size=5)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(names, values, max_size=5), st.sets(names, max_size=3))
def test_unknown_fields_come_back_as_they_were(fields: dict[str, Any], known: set[str]) -> None:
    """C22: names and values, and none of the known ones."""
    unknown = unknown_in(fields, known)
    hash(unknown)
    found = orjson.loads(orjson.dumps(restored(unknown)))
    assert found == {name: value for name, value in fields.items() if name not in known}


@given(st.lists(values, max_size=5), st.integers(0, 5))
def test_unknown_columns_come_back_as_they_were(row: list[Any], known: int) -> None:
    """C22: the values behind the known ones, in their order."""
    assert orjson.loads(orjson.dumps(restored_columns(columns_after(row, known)))) == row[known:]


def test_a_record_made_anew_keeps_the_longer_rows() -> None:
    """C22: a ledger whose end is found is described anew, but its row keeps its end."""
    writers = [Writer("folder", "broker", 1, 2), Writer("folder", "broker", 2, 3)]
    before = ManagedLedgerRecord("id", tuple(LedgerInfo(n, 0, writer=writers[n]) for n in range(2)), 1)
    fields = orjson.loads(before.encode())
    fields["ledgers"][0].append({"region": "a"})
    fields["writers"][1].append("later")
    fields["later"] = [1]
    read = ManagedLedgerRecord.decode(orjson.dumps(fields))
    assert [info[:-1] for info in read.ledgers] == [info[:-1] for info in before.ledgers]
    closed = tuple(LedgerInfo(info.id, 5, 1, 1, 9, 1, closed=True, writer=info.writer) for info in read.ledgers)
    made = ManagedLedgerRecord("id", closed, 1, unknown_of_writers=read.unknown_of_writers, unknown=read.unknown)
    written = orjson.loads(made.keeping(read).encode())
    assert [row[11:] for row in written["ledgers"]] == [[{"region": "a"}], []]
    assert [row[4:] for row in written["writers"]] == [[], ["later"]]
    assert written["later"] == [1]
    assert [row[1:3] for row in written["ledgers"]] == [[5, 1]] * 2
