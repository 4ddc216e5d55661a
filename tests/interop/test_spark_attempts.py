"""Tasks that write to Tidewire and that Spark retries, or runs twice, on a cluster of two hosts."""

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession

from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker
from tests.support.spark_hosts import spark_on_two_hosts
from tidewire.spark.options import ReadOptions
from tidewire.spark.reader import TidewireReader

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TOPIC = "topic://public/default/x"
ROWS = 50_000
"""Enough for Spark to hand some on, and for the sink to send some, before the last one comes."""

Batches = Iterator[pa.RecordBatch]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    with spark_on_two_hosts(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    """Run one broker for each test, because the tests read everything that was written."""
    with running_broker(tmp_path / "data") as broker:
        Admin(broker.http_url).create(TOPIC, 2)
        yield broker


def write(spark: SparkSession, broker: RunningBroker, end: Callable[[int], None]) -> None:
    """Write ROWS rows in one task, and none in another one, which ends at once.

    Args:
        spark: the session.
        broker: the target.
        end: called by each attempt of the task after its last row, with its number.
    """
    service_url, http_url = broker.service_url, broker.http_url

    def make(batches: Batches) -> Batches:
        context = TaskContext.get()
        assert context is not None
        for _ in batches:
            pass
        if context.attemptNumber() > 0:
            # Or the rows that the first attempt waits for might be those of the second one.
            until_written(service_url, http_url)
        if context.partitionId() == 0:
            for start in range(0, ROWS, 1000):
                texts = [str(number) for number in range(start, start + 1000)]
                yield pa.RecordBatch.from_pydict({"key": texts, "value": texts})
            end(context.attemptNumber())

    frame = spark.range(2, numPartitions=2).mapInArrow(make, "key string, value string")
    writer = frame.write.format("tidewire").option("service_url", broker.service_url).option("topic", TOPIC)
    writer.mode("append").save()


def until_written(service_url: str, http_url: str) -> None:
    """Wait until some transaction has written to a segment."""
    with urlopen(f"{http_url}/admin/v2/metadata/watch?prefix=/txn/op/", timeout=60) as lines:
        # A transaction that was aborted has left entries, and no record to watch.
        if stored(service_url, "read_uncommitted"):
            return
        # The broker pushes that a transaction is about to write; an entry of it follows at once.
        assert any(json.loads(line)["event"] in ("present", "written") for line in lines), "the watch has ended"
    while not stored(service_url, "read_uncommitted"):
        pass


def stored(service_url: str, isolation: str) -> Counter[int]:
    options = ReadOptions.parse({"service_url": service_url, "topic": TOPIC, "isolation": isolation})
    reader = TidewireReader(options)
    found: Counter[int] = Counter()
    for partition in reader.partitions():
        for batch in reader.read(partition):
            found.update(map(int, batch.column("value").to_pylist()))
    return found


def assert_only_the_winner_is_read(broker: RunningBroker) -> None:
    assert stored(broker.service_url, "read_committed") == Counter(range(ROWS))
    assert stored(broker.service_url, "read_uncommitted").total() > ROWS, (
        "the loser had written nothing, so this shows nothing"
    )


def test_of_a_task_that_failed_and_ran_again_only_the_second_attempt_is_read(
    spark: SparkSession, broker: RunningBroker
) -> None:
    """D17: the first attempt fails when the broker has some of its rows."""
    service_url, http_url = broker.service_url, broker.http_url

    def fail_at_first(attempt: int) -> None:
        if attempt == 0:
            until_written(service_url, http_url)
            raise RuntimeError("the first attempt")

    write(spark, broker, fail_at_first)
    assert_only_the_winner_is_read(broker)


def test_of_a_task_that_ran_twice_at_a_time_only_the_first_to_end_is_read(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    """D17: the first attempt blocks when the broker has some of its rows, so Spark runs a speculative one."""
    service_url, http_url, pipe = broker.service_url, broker.http_url, tmp_path / "pipe"
    os.mkfifo(pipe)

    def block_at_first(attempt: int) -> None:
        if attempt == 0:
            until_written(service_url, http_url)
            # Nobody ever writes to it.
            pipe.read_text()

    write(spark, broker, block_at_first)
    assert_only_the_winner_is_read(broker)
