"""Every moment of a kill is drawn, and Spark's log is understood."""

from random import Random

import pytest

from tests.support import spark_driver
from tests.support.spark_driver import event_of
from tests.support.spark_moments import Target, moments


@pytest.mark.parametrize("target", Target)
def test_thirty_kills_are_spread_over_everything_that_happens(target: Target) -> None:
    drawn = list(moments(Random(1), target, 30, has_sink=True))
    assert len(drawn) == 30
    once_more = list(moments(Random(1), target, 60, has_sink=True))
    assert once_more[:30] == drawn
    assert {moment.event for moment in drawn} == {moment.event for moment in once_more}
    assert {moment.target for moment in drawn} == {target}
    assert len({str(moment) for moment in drawn}) > 25


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            "Writing atomically to file:/c/offsets/12 using temp file file:/c/offsets/.12.x.tmp",
            spark_driver.OFFSETS_BEGUN,
        ),
        ("Renamed temp file file:/c/offsets/.12.x.tmp to file:/c/offsets/12", spark_driver.OFFSETS_WRITTEN),
        ("Renamed temp file file:/c/commits/.0.x.tmp to file:/c/commits/0", spark_driver.COMMITS_WRITTEN),
        ("Writing atomically to file:/o/_spark_metadata/9.compact using temp file x", spark_driver.MANIFEST_BEGUN),
        ("Renamed temp file file:/c/.metadata.x.tmp to file:/c/metadata", None),
        ("Streaming query made progress", None),
    ],
)
def test_spark_says_in_its_log_what_it_has_written_down(line: str, event: str | None) -> None:
    assert event_of(f"20:40:00.123 INFO CheckpointFileManager: {line}") == event
