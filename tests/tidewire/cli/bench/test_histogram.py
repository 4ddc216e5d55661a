"""Percentiles and slots against the sorted list of all times, which needs no bound."""

import math
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from tidewire.cli.bench.histogram import ERROR, PRECISION_BITS, Histogram, _bucket_of, _end_of
from tidewire.cli.bench.timeline import FIRST_SLOT_SECONDS, SLOTS_MAX, Timeline

TIMES = st.floats(1e-6, 1e6)


def of(times: list[float]) -> Histogram:
    histogram = Histogram()
    for seconds in times:
        histogram.add(seconds)
    return histogram


def test_every_number_is_within_its_bucket_and_buckets_follow_one_another() -> None:
    before = _bucket_of(1)
    for units in [*range(2, 4095), *(2**power + step for power in range(12, 40) for step in (-1, 0, 1))]:
        bucket = _bucket_of(units)
        assert units <= _end_of(bucket) <= units * (1 + ERROR)
        assert bucket >= before
        assert _bucket_of(_end_of(bucket)) == bucket
        assert _bucket_of(_end_of(bucket) + 1) == bucket + 1
        before = bucket


@given(st.lists(TIMES, min_size=1, max_size=200), st.floats(0, 100))
@example([6.103515625e-05], 0.0)
def test_percentiles_are_those_of_the_sorted_times_within_the_error(times: list[float], percent: float) -> None:
    histogram = of(times)
    exact = sorted(times)[max(0, math.ceil(percent / 100 * len(times) - 1e-9) - 1)]
    # A microsecond is the unit.
    assert exact - 1e-6 <= histogram.percentile(percent) <= exact * (1 + ERROR) + 1e-6
    assert max(times) - 1e-6 <= histogram.percentile(100) <= max(times) == histogram.max_seconds
    assert math.isclose(histogram.mean_seconds, sum(times) / len(times))


@given(st.lists(TIMES), st.lists(TIMES))
def test_two_histograms_together_are_that_of_all_times(some: list[float], more: list[float]) -> None:
    together, whole = of(some), of(some + more)
    together.include(of(more))
    percents = (0, 50, 99, 100)
    assert [together.percentile(p) for p in percents] == [whole.percentile(p) for p in percents]
    assert together.count == whole.count == sum(whole.between([1e7]))


def test_a_week_of_times_takes_no_more_memory_than_their_buckets() -> None:
    random = Random(1)
    histogram = of([10 ** random.uniform(-6, 6) for _ in range(50_000)])
    assert len(histogram._counts) <= 34 * 2**PRECISION_BITS
    assert of([]).percentile(99) == 0.0


def test_a_long_run_has_as_many_slots_as_a_short_one() -> None:
    timeline, random = Timeline(), Random(2)
    times = [random.uniform(0.001, 0.1) for _ in range(10_000)]
    for number, seconds in enumerate(times):
        timeline.add(number / 10, seconds)
    slots = list(timeline)
    assert SLOTS_MAX / 2 < len(slots) <= SLOTS_MAX
    doublings = math.log2(timeline.slot_seconds / FIRST_SLOT_SECONDS)
    assert doublings == int(doublings)
    assert len(slots) == math.ceil(999.9 / timeline.slot_seconds)
    in_first = times[: round(timeline.slot_seconds * 10)]
    assert slots[0].count == len(in_first)
    assert slots[0].percentile(50) == of(in_first).percentile(50)
    assert timeline.whole().percentile(99) == of(times).percentile(99)


def test_a_stall_leaves_slots_empty() -> None:
    timeline = Timeline()
    timeline.add(0.05, 0.001)
    timeline.add(0.55, 0.5)
    assert [slot.count for slot in timeline] == [1, 0, 0, 0, 0, 1]
