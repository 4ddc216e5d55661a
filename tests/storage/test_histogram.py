"""Histograms: which bucket a duration belongs to."""

import pytest

from storage.histogram import BOUNDS_SECONDS, Histogram


@pytest.mark.parametrize(
    ("seconds", "bucket"),
    [(0.0, 0), (BOUNDS_SECONDS[0], 0), (0.00051, 1), (BOUNDS_SECONDS[-1], -2), (BOUNDS_SECONDS[-1] + 1, -1)],
)
def test_a_duration_counts_in_the_first_bucket_whose_bound_it_does_not_exceed(seconds: float, bucket: int) -> None:
    histogram = Histogram()
    histogram.count(seconds)
    assert histogram.counts[bucket] == 1
    assert (sum(histogram.counts), len(histogram.counts)) == (1, len(BOUNDS_SECONDS) + 1)


def test_the_durations_are_summed() -> None:
    histogram = Histogram()
    for seconds in (0.25, 20.0):
        histogram.count(seconds)
    assert histogram.sum_seconds == 20.25
