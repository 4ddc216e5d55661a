"""Spark writes to a broker in a separate process, and reads what it has written."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from tests.support.admin import Admin
from tests.support.processes import RunningBroker
from tests.tidewire.spark.test_end_to_end import load

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


def save(frame: DataFrame, broker: RunningBroker, topic: str | None, **options: str) -> None:
    given = {"service_url": broker.service_url, **options}
    if topic is not None:
        given["topic"] = topic
    frame.write.format("tidewire").options(**given).mode("append").save()


def numbers(spark: SparkSession, start: int, end: int) -> DataFrame:
    """Make keys and values, in two partitions."""
    identity = F.col("id")
    return spark.range(start, end, numPartitions=2).select(
        F.concat(F.lit("k"), identity % 20).alias("key"), identity.cast("string").alias("value")
    )


def values(spark: SparkSession, broker: RunningBroker, topic: str) -> list[int]:
    return sorted(int(row.value) for row in load(spark, broker, topic).select("value").collect())


def test_every_column_is_written_and_read_back(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    frame = spark.sql(
        """
        SELECT * FROM VALUES
          ('ключ', X'00FF', timestamp_micros(1700000000123456), map('a', '1', 'b', '')),
          ('', X'', NULL, map()),
          (NULL, NULL, timestamp_micros(1700000000124000), NULL)
        AS rows (key, value, event_time, properties)
        """
    )
    save(frame, broker, topic)
    read = load(spark, broker, topic)
    rows = {
        (row.key, None if row.value is None else bytes(row.value), row.us, tuple(row.properties.items()))
        for row in read.select("key", "value", F.unix_micros("event_time").alias("us"), "properties").collect()
    }
    assert rows == {
        ("ключ", b"\x00\xff", 1_700_000_000_123_000, (("a", "1"), ("b", ""))),
        ("", b"", None, ()),
        (None, None, 1_700_000_000_124_000, ()),
    }
    # A frame that was read can be written as it is.
    copy = Admin(broker.http_url).new_topic(2)
    save(read, broker, copy)
    assert (
        load(spark, broker, copy)
        .select("key", "value", "event_time")
        .exceptAll(read.select("key", "value", "event_time"))
        .isEmpty()
    )


def test_rows_of_a_key_keep_the_order_of_their_partition(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    frame = numbers(spark, 0, 5000).withColumn("number", F.col("value").cast("int"))
    save(frame.repartition("key").sortWithinPartitions("number").drop("number"), broker, topic)
    read = load(spark, broker, topic).select("key", F.col("value").cast("string").cast("int"), "segment", "position")
    by_key: dict[str, list[tuple[object, int]]] = {}
    for key, value, segment, position in read.collect():
        by_key.setdefault(key, []).append(((segment, position), value))
    assert len(by_key) == 20
    for rows in by_key.values():
        in_order = [value for _, value in sorted(rows)]
        assert in_order == sorted(in_order)
        assert len(in_order) == 250


def test_rows_go_to_the_topic_that_their_column_names(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    other = Admin(broker.http_url).new_topic(2)
    frame = numbers(spark, 0, 100).withColumn("topic", F.when(F.col("value") < "5", topic).otherwise(other))
    save(frame, broker, None)
    first, second = values(spark, broker, topic), values(spark, broker, other)
    assert sorted(first + second) == list(range(100))
    assert first == [number for number in range(100) if str(number) < "5"]


def test_the_same_batch_of_an_application_is_written_once(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    """D17, E19: (txn_app_id, txn_version) is applied once; other rows, or a lower version, count only if trusted."""
    for _ in range(2):
        save(numbers(spark, 0, 10), broker, topic, txnAppId="job", txnVersion="3")
    for version in ("3", "2"):
        with pytest.raises(Exception, match="neither written nor taken as written"):
            save(numbers(spark, 10, 20), broker, topic, txnAppId="job", txnVersion=version)
        save(numbers(spark, 10, 20), broker, topic, txnAppId="job", txnVersion=version, trustBatchNumbers="true")
    assert values(spark, broker, topic) == list(range(10))
    save(numbers(spark, 10, 20), broker, topic, txnAppId="job", txnVersion="4")
    # Of this one Spark makes no task at all.
    save(spark.createDataFrame([], "value string"), broker, topic, txnAppId="job", txnVersion="5")
    with pytest.raises(Exception, match="neither written nor taken as written"):
        save(numbers(spark, 50, 60), broker, topic, txnAppId="job", txnVersion="5")
    save(numbers(spark, 20, 30), broker, topic, txnAppId="another job", txnVersion="1")
    save(numbers(spark, 30, 40), broker, topic)
    save(numbers(spark, 40, 50), broker, topic)
    assert values(spark, broker, topic) == list(range(50))


@pytest.mark.parametrize("form", ["auto", "json", "avro"])
def test_structs_are_read_back_by_the_schema_that_was_registered(
    spark: SparkSession, broker: RunningBroker, topic: str, form: str
) -> None:
    frame = spark.sql(
        "SELECT 'UA' AS key, named_struct('carrier', 'UA', 'flight', 1545, 'delays', array(1, 2)) AS value"
    )
    save(frame, broker, topic, schema=form)
    read = load(spark, broker, topic, {"schema": "auto"}).select("key", "value.*")
    assert [tuple(row) for row in read.collect()] == [("UA", "UA", 1545, [1, 2])]
    # A field more is another version, of which the rows before have null.
    save(frame.withColumn("value", F.struct("value.*", F.lit(2013).alias("year"))), broker, topic, schema=form)
    later = load(spark, broker, topic, {"schema": "auto"}).select("value.flight", "value.year")
    assert sorted((tuple(row) for row in later.collect()), key=str) == [(1545, 2013), (1545, None)]


def test_numbers_are_read_back_by_their_schema_and_text_is_refused_after_that(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    save(spark.range(10).select(F.col("id").alias("value")), broker, topic, schema="auto")
    read = load(spark, broker, topic, {"schema": "auto"})
    assert sorted(row.value for row in read.collect()) == list(range(10))
    with pytest.raises(Exception, match=r"\[IncompatibleSchema\]"):
        save(spark.range(1).select(F.lit("a").alias("value")), broker, topic, schema="auto")


@pytest.mark.parametrize(
    ("options", "columns", "sentence"),
    [
        ({}, "id AS value", "column value is bigint, but must be binary or string"),
        ({}, "'a' AS value, id AS carrier", "column carrier cannot be written"),
        ({"starting_position": "latest"}, "'a' AS value", "option starting_position is for reading"),
        ({"txn_app_id": "a"}, "'a' AS value", "option txn_app_id: give txn_version too"),
    ],
)
def test_mistakes_reach_the_user_as_one_sentence(
    spark: SparkSession, broker: RunningBroker, topic: str, options: dict[str, str], columns: str, sentence: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        save(spark.range(1).selectExpr(*columns.split(", ")), broker, topic, **options)
    assert sentence in str(caught.value)


def test_a_topic_is_not_overwritten(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    writer = numbers(spark, 0, 1).write.format("tidewire").options(service_url=broker.service_url, topic=topic)
    with pytest.raises(AnalysisException, match=r"a topic cannot be overwritten: write with \.mode"):
        writer.mode("overwrite").save()


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    """D17: rows that a job wrote before one of its tasks failed are never read."""
    frame = numbers(spark, 0, 1000).withColumn(
        "value", F.when(F.col("value") == "999", F.raise_error("the last row")).otherwise(F.col("value"))
    )
    with pytest.raises(Exception, match="the last row"):
        save(frame, broker, topic)
    save(numbers(spark, 0, 10), broker, topic)
    assert values(spark, broker, topic) == list(range(10))


class Copying:
    """A query that copies one topic to another."""

    def __init__(
        self,
        spark: SparkSession,
        broker: RunningBroker,
        folder: Path,
        source: str,
        target: str,
        value: str = "value",
        **options: str,
    ) -> None:
        self._spark, self._broker, self._source, self._value = spark, broker, source, value
        self._options = {"service_url": broker.service_url, "topic": target, **options}
        self.checkpoint = folder / "checkpoint"

    def run_out(self) -> list[int]:
        """Copy everything in micro-batches of at most 100 rows, and stop. Return their numbers."""
        frame = load_stream(self._spark, self._broker, self._source, max_rows_per_trigger="100")
        writer = frame.selectExpr("key", f"{self._value} AS value").writeStream.format("tidewire")
        writer = writer.options(**self._options)
        query = writer.option("checkpointLocation", str(self.checkpoint)).trigger(availableNow=True).start()
        assert query.awaitTermination(120)
        return [progress["batchId"] for progress in query.recentProgress if progress["numInputRows"]]

    def forget_last_commit(self) -> int:
        """Act as if Spark had died between the sink's commit and its own record. Return the micro-batch's number."""
        last = max((self.checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        return int(last.name)


def load_stream(spark: SparkSession, broker: RunningBroker, topic: str, **options: str) -> DataFrame:
    given = {"service_url": broker.service_url, "topic": topic, "starting_position": "earliest", **options}
    return spark.readStream.format("tidewire").options(**given).load()


def test_a_stream_that_forgot_its_last_commit_writes_nothing_twice(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """D17: the micro-batch runs again, and the query's id and the number identify it."""
    target = Admin(broker.http_url).new_topic(2)
    for start in range(0, 500, 100):
        save(numbers(spark, start, start + 100), broker, topic)
    copying = Copying(spark, broker, tmp_path, topic, target)
    assert len(copying.run_out()) > 1
    assert values(spark, broker, target) == list(range(500))
    last = copying.forget_last_commit()
    assert copying.run_out() == [last]
    assert values(spark, broker, target) == list(range(500))
    save(numbers(spark, 500, 600), broker, topic)
    copying.run_out()
    assert values(spark, broker, target) == list(range(600))


def test_a_checkpoint_that_was_restored_is_refused(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """E19: its micro-batches would reuse numbers, and their rows would count as written."""
    target = Admin(broker.http_url).new_topic(2)
    copying = Copying(spark, broker, tmp_path, topic, target)
    kept = tmp_path / "kept"

    def run_on(start: int) -> None:
        save(numbers(spark, start, start + 40), broker, topic)
        copying.run_out()

    def restore() -> None:
        shutil.rmtree(copying.checkpoint)
        shutil.copytree(kept, copying.checkpoint)

    run_on(0)
    shutil.copytree(copying.checkpoint, kept)
    run_on(40)
    restore()
    # The same rows under the same number: nothing is lost or doubled by going on.
    copying.run_out()
    assert values(spark, broker, target) == list(range(80))
    restore()
    with pytest.raises(StreamingQueryException, match="differs from the one that was written under this number"):
        # Planned anew, the micro-batch has rows of both.
        run_on(80)
    assert values(spark, broker, target) == list(range(80))


def test_rows_that_differ_each_time_are_written_once(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """E19, D17: the micro-batch of a killed query runs again, and its plan identifies it."""
    target = Admin(broker.http_url).new_topic(2)
    save(numbers(spark, 0, 50), broker, topic)
    copying = Copying(spark, broker, tmp_path, topic, target, "concat(string(value), '|', rand())")
    copying.run_out()
    before = sorted(bytes(row.value) for row in load(spark, broker, target).collect())
    copying.forget_last_commit()
    copying.run_out()
    assert sorted(bytes(row.value) for row in load(spark, broker, target).collect()) == before
    assert len(before) == 50


def test_an_application_is_of_the_query_that_counts_its_batches(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """D17: a query that restarts under its name is refused; otherwise its first rows would count as written."""
    target = Admin(broker.http_url).new_topic(2)
    save(numbers(spark, 0, 50), broker, topic)
    Copying(spark, broker, tmp_path / "first", topic, target, txnAppId="copy").run_out()
    with pytest.raises(StreamingQueryException, match="Batch 0 came from a different query whose numbering restarted"):
        Copying(spark, broker, tmp_path / "second", topic, target, txnAppId="copy").run_out()
    assert values(spark, broker, target) == list(range(50))
    Copying(spark, broker, tmp_path / "third", topic, target).run_out()
    assert values(spark, broker, target) == sorted([*range(50), *range(50)])


def test_a_streams_mistakes_reach_the_user_as_one_sentence(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    save(numbers(spark, 0, 1), broker, topic)
    with pytest.raises(StreamingQueryException, match="option txn_version is not for a stream"):
        Copying(spark, broker, tmp_path, topic, Admin(broker.http_url).new_topic(2), txnVersion="1").run_out()


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        ("complete", r"a topic cannot be overwritten: write with \.outputMode"),
        ("update", "does not support Update mode"),
    ],
)
def test_a_stream_is_appended(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path, mode: str, sentence: str
) -> None:
    """Spark refuses the mode update for sinks in Python; the test below writes updates by hand."""
    save(numbers(spark, 0, 1), broker, topic)
    counts = load_stream(spark, broker, topic).groupBy("key").count()
    texts = counts.select("key", F.col("count").cast("string").alias("value"))
    writer = texts.writeStream.format("tidewire").options(service_url=broker.service_url, topic=topic)
    query = writer.outputMode(mode).option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match=sentence):
        query.awaitTermination(120)


def test_each_micro_batch_may_be_written_by_hand_as_a_version_of_an_application(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """D17: foreachBatch writes to several topics, with the micro-batch's number as txn_version."""
    targets = [Admin(broker.http_url).new_topic(2), Admin(broker.http_url).new_topic(2)]
    save(numbers(spark, 0, 50), broker, topic)

    def write_twice(frame: DataFrame, batch: int) -> None:
        for number, target in enumerate([*targets, *targets]):
            save(frame, broker, target, txnAppId=f"by hand {number % 2} of {topic}", txnVersion=str(batch))

    query = load_stream(spark, broker, topic).writeStream.foreachBatch(write_twice)
    query = query.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
    assert query.start().awaitTermination(120)
    for target in targets:
        assert values(spark, broker, target) == list(range(50))


def test_tasks_of_a_stream_are_told_their_query_and_micro_batch(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """Spark does not document these local properties, and without them there would be no group."""
    from pyspark import TaskContext

    from tidewire.spark.sink import BATCH_ID, QUERY_ID

    def tell(batches: Iterator[object]) -> Iterator[object]:
        import pyarrow as pa

        context = TaskContext.get()
        assert context is not None
        for _ in batches:
            pass
        told = {name: context.getLocalProperty(name) for name in (QUERY_ID, BATCH_ID)}
        yield pa.RecordBatch.from_pydict({"value": [json.dumps(told)]})

    save(numbers(spark, 0, 1), broker, topic)
    target = Admin(broker.http_url).new_topic(2)
    told = load_stream(spark, broker, topic).mapInArrow(tell, "value string")
    writer = told.writeStream.format("tidewire").options(service_url=broker.service_url, topic=target)
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    assert query.awaitTermination(120)
    read = [json.loads(bytes(row.value)) for row in load(spark, broker, target).collect()]
    assert {QUERY_ID: query.id, BATCH_ID: "0"} in read
