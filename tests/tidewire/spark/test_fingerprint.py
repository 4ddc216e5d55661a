"""A short fingerprint of a micro-batch's rows."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tidewire.spark.encoding import Columns, Rows, encode
from tidewire.spark.fingerprint import NOTHING, fingerprint


def rows_of(given: list[tuple[str | None, bytes | None]]) -> Rows:
    keys, values = [key for key, _ in given], [value for _, value in given]
    return encode(Columns(pa.array(values, pa.binary()), pa.array(keys, pa.string())))


rows = st.lists(st.tuples(st.none() | st.text(max_size=2), st.none() | st.binary(max_size=2)), max_size=6)


@given(rows, st.data())
def test_it_depends_on_the_rows_and_neither_on_their_order_nor_on_their_tasks(
    given_rows: list[tuple[str | None, bytes | None]], data: st.DataObject
) -> None:
    """E19: Spark may divide a repeated batch in another way."""
    whole = fingerprint("x", rows_of(given_rows))
    shuffled = data.draw(st.permutations(given_rows))
    cut = data.draw(st.integers(0, len(shuffled)))
    assert fingerprint("x", rows_of(shuffled[:cut])) + fingerprint("x", rows_of(shuffled[cut:])) == whole
    assert whole.count == len(given_rows)
    other = data.draw(rows)
    if sorted(map(repr, other)) != sorted(map(repr, given_rows)):
        assert fingerprint("x", rows_of(other)) != whole
    if given_rows:
        assert fingerprint("y", rows_of(given_rows)) != whole


def test_it_is_short_text() -> None:
    """E19: equal rows count as often as they occur."""
    one = fingerprint("x", rows_of([("k", b"v")]))
    assert str(NOTHING) == "0:00000000000000000000000000000000"
    assert str(one + one).startswith("2:")
    assert str(one + one) != str(one)
    assert len(str(one)) == 34
