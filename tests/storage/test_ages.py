"""When a record is due: by what this process saw, or by its stamp with the clocks' difference to spare."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.ages import SKEW_MAX_MS, DueTimes, due_ms

HOUR = 3_600_000
MINUTE = 60_000


@pytest.mark.parametrize(
    ("writer_ahead", "reader_ahead", "seen_after", "is_alone", "due_after"),
    [
        pytest.param(0, 0, 0, True, MINUTE, id="alone"),
        pytest.param(0, 0, 10 * MINUTE, True, MINUTE, id="alone and started again"),
        pytest.param(0, -HOUR, 0, True, MINUTE, id="alone, and the clock was set back"),
        pytest.param(0, -HOUR, 30_000, True, 90_000, id="alone, and the clock was set back in the middle"),
        pytest.param(0, 0, 0, False, MINUTE, id="two brokers"),
        pytest.param(0, HOUR, 0, False, MINUTE, id="the reader's clock is ahead"),
        pytest.param(0, -HOUR, 0, False, MINUTE, id="the reader's clock is behind"),
        pytest.param(HOUR, 0, 0, False, MINUTE, id="the writer's clock is ahead"),
        pytest.param(-HOUR, 0, 0, False, MINUTE, id="the writer's clock is behind"),
        pytest.param(-HOUR, HOUR - 1, 0, False, MINUTE, id="both are wrong"),
        pytest.param(0, 0, 30_000, False, 90_000, id="a take-over in the middle"),
        pytest.param(0, HOUR, 30_000, False, 90_000, id="a take-over by a clock that is ahead"),
        pytest.param(0, 0, 3 * HOUR, False, MINUTE + SKEW_MAX_MS, id="a start long after"),
    ],
)
def test_when_a_record_is_due(
    writer_ahead: int, reader_ahead: int, seen_after: int, is_alone: bool, due_after: int
) -> None:
    """C17, E15: times are after the writing, by a true clock; the record is due at the age of a minute."""
    written = 10 * HOUR
    stamp = written + writer_ahead
    moment = due_ms(stamp + MINUTE, MINUTE, written + seen_after + reader_ahead, is_alone=is_alone)
    assert moment - reader_ahead - written == due_after


@given(
    st.integers(-SKEW_MAX_MS, SKEW_MAX_MS), st.integers(0, 10 * HOUR), st.integers(0, 10 * HOUR), st.integers(0, HOUR)
)
def test_nothing_is_due_early(apart: int, written: int, span: int, seen_after: int) -> None:
    """C17: whatever the difference of the clocks up to the bound; and a take-over costs a span at most."""
    moment = due_ms(written + span, span, written + seen_after + apart, is_alone=False) - apart
    assert moment >= written + span
    assert moment <= written + seen_after + span


def test_due_times_come_in_order() -> None:
    times = DueTimes()
    assert len(times) == 0
    for key, moment in (("c", 30), ("a", 20), ("b", 10), ("d", 20)):
        times.put(key, moment)
    assert times.next_ms == 10
    assert times.due(20, limit=10) == ["b", "a", "d"]
    assert times.due(20, limit=2) == ["b", "a"]
    assert times.due(9, limit=10) == []
    assert times.is_due("a", 20)
    assert not times.is_due("a", 19)
    assert not times.is_due("nobody", 20)
    times.put("b", 40)
    times.forget("a")
    times.forget("a")
    assert times.due(40, limit=10) == ["d", "c", "b"]
    assert "a" not in times
    assert len(times) == len(times.keys()) == 3
