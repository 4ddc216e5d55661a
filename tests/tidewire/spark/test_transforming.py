"""What a job refuses before any request or run."""

from typing import Any
from unittest.mock import MagicMock, create_autospec

import pytest
from pyspark.sql import SparkSession

from tidewire.spark import ConsumeTransformProduce
from tidewire.spark.errors import InvalidOption
from tidewire.spark.job_progress import Batch

SOURCE = {"service_url": "pulsar://h", "topic": "topic://a/b/x"}
SINK = {"topic": "topic://a/b/y"}


def made(source: dict[str, str], sink: dict[str, str], spark: Any = None) -> ConsumeTransformProduce:
    spark = spark or create_autospec(SparkSession, instance=True)
    return ConsumeTransformProduce(spark, name="j", source=source, transform=lambda frame: frame, sink=sink)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"topics": "x"}, "unknown option 'topics'"),
        ({"subscription": "s"}, "option subscription: a job's subscription has the job's name"),
        ({"isolation": "read_uncommitted"}, "option isolation: a job always reads committed messages"),
        ({"topic": "persistent://a/b/x"}, "option topic: persistent://a/b/x takes no transactions"),
        ({"starting_position": "1714564800000"}, "option starting_position: a new job must begin at"),
        ({"ending_position": "latest"}, "option ending_position is not for a stream"),
    ],
)
def test_what_its_source_cannot_be(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        made({**SOURCE, **changed}, SINK)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"path": "x"}, "a topic is not a path"),
        ({"txnAppId": "a", "txn_version": "1"}, "option txn_app_id is set by the job"),
        ({"also_commit": "1:2"}, "option also_commit is set by the job"),
        ({"topic": "persistent://a/b/y"}, "option topic: persistent://a/b/y takes no transactions"),
    ],
)
def test_what_its_sink_cannot_be(changed: dict[str, str], sentence: str) -> None:
    with pytest.raises(InvalidOption, match=sentence):
        made(SOURCE, {**SINK, **changed})


def test_names_may_be_written_as_spark_writes_its_own() -> None:
    made(
        {"serviceUrl": "pulsar://h", "TOPICPATTERN": "topic://a/b/.*", "maxRowsPerTrigger": "5"},
        {"serviceUrl": "pulsar://h"},
    )


def test_its_batches_are_read_with_the_options_of_its_source() -> None:
    """Options that select a batch are left out, because the job plans batches; names may have any spelling."""
    given = {
        "schema": "auto",
        "columns": "key,value",
        "fail_on_data_loss": "false",
        "partition_bytes": "70000",
        "operation_timeout_seconds": "5",
    }
    planned = {"starting_position": "latest", "max_rows_per_trigger": "5", "MaxBytesPerTrigger": "6"}
    spark = MagicMock(SparkSession)
    made({**SOURCE, **given, **planned}, SINK, spark)._read(Batch("a", 0, ()))
    read_with = spark.read.format.return_value.options.call_args.kwargs
    assert read_with == {"service_url": "pulsar://h", **given}
