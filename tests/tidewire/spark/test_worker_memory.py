import gc
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.tidewire.spark.readable import TOPIC, Readable
from tidewire.protocol.positions import EARLIEST
from tidewire.spark.partitions import SegmentRange
from tidewire.spark.reader import RangeReading
from tidewire.spark.schema import SCHEMA
from tidewire.spark.worker_memory import settle


@pytest.fixture(autouse=True)
def another_process() -> Iterator[None]:
    """Act as a new process without settings, and restore the settings afterwards."""
    settle.cache_clear()
    yield
    settle.cache_clear()
    gc.unfreeze()


def test_what_is_there_at_first_is_not_looked_through_again() -> None:
    gc.unfreeze()
    settle()
    settled = gc.get_freeze_count()
    assert settled > 10_000, "the modules of Spark and Arrow alone are more"
    kept = [[number] for number in range(1_000)]
    settle()
    assert gc.get_freeze_count() <= settled, f"what came later, {len(kept)} objects, is looked through"


def test_a_task_that_reads_settles_its_worker() -> None:
    gc.unfreeze()
    nothing = SegmentRange(TOPIC, None, "x", end=EARLIEST)
    options = replace(Readable().options, operation_timeout_seconds=0.001)
    reading = RangeReading(options, SCHEMA, None).read(nothing)
    assert gc.get_freeze_count() == 0
    with pytest.raises(Exception, match="no broker can be reached"):
        next(reading)
    assert gc.get_freeze_count() > 0
