import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.layout import Layout, Segment
from tidewire.spark.encoding import NO_KEY, Columns, Rows, encode
from tidewire.spark.routing import RUN_ROWS, Routes

TOPIC = "topic://public/default/x"


def part(number: int, first: int, last: int) -> Segment:
    return Segment(
        TOPIC, None, f"segment://public/default/x/{first:04x}-{last:04x}-{number}", number, (), (first, last)
    )


def routes_among(parts: list[Segment], turn: int = 0) -> Routes:
    return Routes(Layout(0, {part.segment_id: part for part in parts}), turn)


def rows(*hashes: int) -> Rows:
    """Make rows whose values are their indexes."""
    encoded = encode(Columns(pa.array([b"%d" % place for place in range(len(hashes))], pa.binary())))
    return Rows(encoded.messages, np.array(hashes, np.int64))


def divided(routes: Routes, taken: Rows) -> dict[int, list[int]]:
    """Return the hashes by segment."""
    return {number: own.hashes.tolist() for number, own in routes.divide(taken)}


def test_each_key_goes_to_the_segment_that_holds_its_hash_and_keeps_its_order() -> None:
    routes = routes_among([part(7, 0x8000, 0xFFFF), part(2, 0, 0x3FFF), part(3, 0x4000, 0x7FFF)])
    assert divided(routes, rows(0, 0xFFFF, 0x4000, 0x3FFF, 0x7FFF, 0x8000, 0)) == {
        2: [0, 0x3FFF, 0],
        3: [0x4000, 0x7FFF],
        7: [0xFFFF, 0x8000],
    }


@given(st.sets(st.integers(1, 0xFFFF), max_size=10), st.lists(st.integers(0, 0xFFFF), max_size=20))
def test_a_row_goes_where_the_client_sends_its_message(cuts: set[int], hashes: list[int]) -> None:
    """Otherwise a key with several writers would lose its order."""
    starts = [0, *sorted(cuts)]
    ends = [start - 1 for start in starts[1:]] + [0xFFFF]
    parts = [part(number, *ends_of) for number, ends_of in enumerate(zip(starts, ends, strict=True))]
    layout = Layout(0, {one.segment_id: one for one in parts})
    by_segment: dict[int, list[int]] = {}
    for hashed in hashes:
        by_segment.setdefault(layout.segment_of(hashed).segment_id, []).append(hashed)
    assert divided(Routes(layout), rows(*hashes)) == by_segment


def test_what_goes_to_one_segment_is_not_copied() -> None:
    taken = rows(1, 2, 3)
    for routes in (
        routes_among([part(0, 0, 0xFFFF)]),
        routes_among([part(1, 0, 0x7FFF), part(2, 0x8000, 0xFFFF)]),
    ):
        ((_, own),) = routes.divide(taken)
        assert own is taken


def test_rows_without_keys_take_turns_in_runs() -> None:
    routes = routes_among([part(1, 0, 0x7FFF), part(2, 0x8000, 0xFFFF)], turn=5)
    assert divided(routes, rows(NO_KEY)) == {2: [NO_KEY]}
    assert divided(routes, rows(NO_KEY, NO_KEY)) == {1: [NO_KEY] * 2}
    sizes = {number: len(own) for number, own in divided(routes, rows(*[NO_KEY] * (RUN_ROWS * 3 + 1))).items()}
    assert sizes == {2: RUN_ROWS * 2, 1: RUN_ROWS + 1}
    assert divided(routes, rows(NO_KEY, 0, NO_KEY, 0xFFFF)) == {2: [NO_KEY, NO_KEY, 0xFFFF], 1: [0]}


def test_no_rows_go_nowhere() -> None:
    assert divided(routes_among([part(1, 0, 0x7FFF), part(2, 0x8000, 0xFFFF)]), rows()) == {}


def test_a_regular_topic_is_refused() -> None:
    legacy = Segment(TOPIC, None, "persistent://public/default/x", 0)
    with pytest.raises(ProtocolViolation, match="is a regular topic, which takes no transactions"):
        routes_among([legacy])
