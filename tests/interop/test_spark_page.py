"""Runs the example of docs/how-to/spark-jobs.md, and the marked ones of docs/spark.md, unchanged."""

from pathlib import Path

import pytest
import trio

import tidewire
from tests.scenarios.client.test_readme import CHECKOUT, Piece, pieces, run
from tests.support.admin import Admin
from tests.support.subjects import running_subject
from tidewire.spark.options import ReadOptions
from tidewire.spark.reader import TidewireReader


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_the_pages_job_runs(tmp_path: Path) -> None:
    """It prints what the page says, and its topic has the expected rows."""
    (job,) = pieces((CHECKOUT / "docs" / "how-to" / "spark-jobs.md").read_text(encoding="utf-8"))
    folder = tmp_path / "work"
    folder.mkdir()
    with running_subject("tidewire", tmp_path / "data") as broker:
        for topic in ("flights", "departures"):
            Admin(broker.http_url).create(f"topic://public/default/{topic}", 2)

        async def write() -> None:
            with trio.fail_after(30):
                connected = tidewire.connect(broker.service_url)
                async with connected as client, client.producer("topic://public/default/flights") as producer:
                    for text in (b"JFK departed", b"LGA landed", b"EWR departed"):
                        await producer.send(text, key=text[:3].decode())

        trio.run(write)
        assert run(job, broker, folder) == "1 batches\n"
        written = {"service_url": broker.service_url, "topic": "topic://public/default/departures"}
        reader = TidewireReader(ReadOptions.parse(written))
        rows = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert {(row["key"], row["value"]) for row in rows} == {("JFK", b"JFK departed"), ("EWR", b"EWR departed")}


STORY = """
from pyspark.sql import SparkSession
from tidewire.spark.streaming import lag_of

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
{listener}
given = {{"service_url": "pulsar://127.0.0.1:6650", "topic": "topic://public/default/flights"}}
spark.createDataFrame([("a",), ("b",)], "value string").write.format("tidewire").options(**given).mode("append").save()
stream = spark.readStream.format("tidewire").options(**given, starting_position="earliest").load()
query = stream.writeStream.format("noop").option("checkpointLocation", "checkpoint").trigger(availableNow=True).start()
query.awaitTermination()
# It returns when all listeners have had all events.
spark._jsparkSession.sparkContext().listenerBus().waitUntilEmpty()
spark.stop()
"""


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_the_listener_of_the_spark_page_prints_rows_and_lag(tmp_path: Path) -> None:
    found = pieces((CHECKOUT / "docs" / "spark.md").read_text(encoding="utf-8"))
    (listener,) = [piece for piece in found if "class Progress" in piece.text]
    folder = tmp_path / "work"
    folder.mkdir()
    with running_subject("tidewire", tmp_path / "data") as broker:
        Admin(broker.http_url).create("topic://public/default/flights", 1)
        said = run(Piece("spark", STORY.format(listener=listener.text)), broker, folder).splitlines()
    assert said == ["0 2 0 0.0", "ended"]


SQL = """
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
given = {{"service_url": "pulsar://127.0.0.1:6650", "topic": "topic://public/default/flights"}}
spark.createDataFrame([("a",), ("b",)], "value string").write.format("tidewire").options(**given).mode("append").save()
{view}
try:
    spark.sql("CREATE TABLE kept USING tidewire OPTIONS (topic 'topic://public/default/flights')")
except AnalysisException as error:
    print(str(error))
spark.stop()
"""


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_the_view_of_the_spark_page_reads_and_a_table_is_refused(tmp_path: Path) -> None:
    """Spark passes no options of a table to a source. Once it does, the page may show `CREATE TABLE`."""
    found = pieces((CHECKOUT / "docs" / "spark.md").read_text(encoding="utf-8"))
    (view,) = [piece for piece in found if "CREATE TEMPORARY VIEW" in piece.text]
    folder = tmp_path / "work"
    folder.mkdir()
    with running_subject("tidewire", tmp_path / "data") as broker:
        Admin(broker.http_url).create("topic://public/default/flights", 1)
        said = run(Piece("spark", SQL.format(view=view.text)), broker, folder)
    assert "|0000-ffff-0|       2|" in said
    assert "in place of CREATE TABLE, use CREATE TEMPORARY VIEW ... USING tidewire OPTIONS (...)" in said


THREADS = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
url = "pulsar://127.0.0.1:6650"
targets = ["topic://public/default/left", "topic://public/default/right"]
flights = spark.createDataFrame([("k", "a"), ("k", "b")], "key string, value string")
{threads}
for target in targets:
    print(target, spark.read.format("tidewire").options(service_url=url, topic=target).load().count())
spark.stop()
"""


@pytest.mark.interop
@pytest.mark.timeout(400)
def test_the_threads_of_the_spark_page_write(tmp_path: Path) -> None:
    found = pieces((CHECKOUT / "docs" / "spark.md").read_text(encoding="utf-8"))
    (threads,) = [piece for piece in found if "ThreadPoolExecutor" in piece.text]
    folder = tmp_path / "work"
    folder.mkdir()
    with running_subject("tidewire", tmp_path / "data") as broker:
        for topic in ("left", "right"):
            Admin(broker.http_url).create(f"topic://public/default/{topic}", 1)
        said = run(Piece("spark", THREADS.format(threads=threads.text)), broker, folder).splitlines()
    assert said == ["topic://public/default/left 2", "topic://public/default/right 2"]
