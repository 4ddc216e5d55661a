import gc
import subprocess
import sys
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
    settle(makes_arrays=True)
    settled = gc.get_freeze_count()
    assert settled > 10_000, "the modules of Spark and Arrow alone are more"
    kept = [[number] for number in range(1_000)]
    settle(makes_arrays=True)
    assert gc.get_freeze_count() <= settled, f"what came later, {len(kept)} objects, is looked through"


def test_what_arrow_imports_for_its_first_array_is_not_looked_through() -> None:
    """In a process of its own, where nothing has made an array yet."""
    program = """
import gc, sys
from tidewire.spark import reader
from tidewire.spark.worker_memory import settle
assert "pandas" not in sys.modules
settle(makes_arrays=True)
gc.collect()
import numpy, pyarrow
pyarrow.array(numpy.arange(3)), pyarrow.array(["a"])
print("pandas" in sys.modules, len(gc.get_objects()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported, looked_through = done.stdout.split()
    assert imported == "True", "without pandas this test shows nothing"
    assert int(looked_through) < 1_000


def test_a_task_that_reads_settles_its_worker() -> None:
    gc.unfreeze()
    nothing = SegmentRange(TOPIC, None, "x", end=EARLIEST)
    options = replace(Readable().options, operation_timeout_seconds=0.001)
    reading = RangeReading(options, SCHEMA, None).read(nothing)
    assert gc.get_freeze_count() == 0
    with pytest.raises(Exception, match="no broker can be reached"):
        next(reading)
    assert gc.get_freeze_count() > 0
