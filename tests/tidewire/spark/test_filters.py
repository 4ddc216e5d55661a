from datetime import UTC, datetime, timedelta, timezone
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from tidewire.spark.filters import pushed_of
from tidewire.spark.pushed import NOTHING_PUSHED, Pushed

KEY, SEGMENT, TOPIC, PUBLISHED = ("key",), ("segment",), ("topic",), ("publish_time",)
NOON = datetime(2024, 5, 1, 12, tzinfo=UTC)
NOON_US = 1_714_564_800_000_000


@pytest.mark.parametrize(
    "filters",
    [
        [],
        [Not(EqualTo(KEY, "a"))],
        [IsNull(KEY), EqualNullSafe(KEY, None), StringStartsWith(KEY, "a")],
        [EqualTo(("value",), b"a"), EqualTo(("position", "ledger"), 3), In(("index",), (1, 2))],
        [EqualTo(KEY, 3), In(KEY, ("a", None))],
    ],
)
def test_what_is_not_understood_narrows_nothing(filters: list[Filter]) -> None:
    assert pushed_of(filters) == NOTHING_PUSHED


def test_filters_hold_together() -> None:
    filters = [In(KEY, ("a", "b")), EqualTo(KEY, "b"), EqualTo(SEGMENT, "0000-ffff-0"), EqualNullSafe(TOPIC, "t")]
    assert pushed_of(filters) == Pushed(frozenset({"t"}), frozenset({"0000-ffff-0"}), frozenset({"b"}))
    assert pushed_of([EqualTo(KEY, "a"), EqualTo(KEY, "b")]).keys == frozenset()


def test_times_are_moments_whatever_their_zone() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5)))
    assert pushed_of([GreaterThan(PUBLISHED, elsewhere)]).published_from_us == NOON_US


@given(
    st.lists(
        st.tuples(
            st.sampled_from([GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, EqualTo]),
            st.integers(-5, 5),
        ),
        max_size=3,
    ),
    st.integers(-6, 6),
)
def test_no_row_is_left_out_that_the_filters_let_pass(bounds: list[tuple[type[Filter], int]], time_us: int) -> None:
    given = [cast("type[EqualTo]", kind)(PUBLISHED, NOON + timedelta(microseconds=bound)) for kind, bound in bounds]
    pushed = pushed_of(given)
    holds = {
        GreaterThan: time_us.__gt__,
        GreaterThanOrEqual: time_us.__ge__,
        LessThan: time_us.__lt__,
        LessThanOrEqual: time_us.__le__,
        EqualTo: time_us.__eq__,
    }
    if all(holds[kind](bound) for kind, bound in bounds):
        assert pushed.wants_published(NOON_US + time_us)


def test_a_time_that_is_null_meets_no_bound() -> None:
    assert NOTHING_PUSHED.wants_published(None)
    assert not pushed_of([LessThan(PUBLISHED, NOON)]).wants_published(None)
