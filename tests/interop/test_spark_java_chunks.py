"""Spark reads whole what Pulsar's unmodified Java v5 client sent in chunks."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from scripts.need import place
from tests.support.admin import Admin
from tests.support.java import QUICK_JAVA
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.spark.conftest import spark

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

PROGRAM: Final = "tidewire.interop.SparkChunks"
PROGRAM_SECONDS_MAX: Final = 120.0
CHUNK_BYTES: Final = 100_000
SIZES: Final = (3_000_000, 10, 700_000, 100_001)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_chunks_of_two_producers_are_read_whole(
    spark: SparkSession, broker: RunningBroker, compression: str, tmp_path: Path
) -> None:
    """In a batch of several tasks, and in micro-batches, each of which may end between two chunks."""
    topic = Admin(broker.http_url).new_topic(1)
    target = place("pulsar-java-client")
    given = (broker.service_url, topic, compression, 2, CHUNK_BYTES, *SIZES)
    command = ["java", *QUICK_JAVA, "-cp", f"{target}/classes:{target}/lib/*", PROGRAM, *map(str, given)]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_SECONDS_MAX)
    assert told.returncode == 0, told.stderr[-5_000:]
    expected = sorted((str(number), size, True) for number in range(2) for size in SIZES)
    # Each chunk of a message counts in `index`.
    columns = ("key", "length(value) AS bytes", "sha2(value, 256) = properties['sha256'] AS is_whole", "index")

    options = {"service_url": broker.service_url, "topic": topic}
    frame = spark.read.format("tidewire").options(**options, partition_bytes="500000").load()
    assert frame.rdd.getNumPartitions() > 1
    rows = frame.selectExpr(*columns).collect()
    assert sorted((row.key, row.bytes, row.is_whole) for row in rows) == expected
    assert max(row["index"] for row in rows) >= 2 * sum(SIZES) // CHUNK_BYTES

    stream = spark.readStream.format("tidewire").options(
        **options, starting_position="earliest", max_rows_per_trigger="3"
    )
    writer = stream.load().selectExpr(*columns).writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted((row.key, row.bytes, row.is_whole) for row in rows) == expected
