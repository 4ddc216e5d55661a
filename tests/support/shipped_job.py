"""A Spark job as a user ships it: reads a topic as a batch, writes it to another topic, and reads that as a stream.

    python shipped_job.py URL TOPIC TARGET MASTER [register]

It runs in a separate folder and imports nothing from the tests, so that it finds only what was shipped. Its last line
is JSON.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession


def where(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return, for each task, its process, its folder, and the package that it imports."""
    rows = sum(batch.num_rows for batch in batches)
    import tidewire

    found = {"rows": [rows], "process": [os.getpid()], "folder": [str(Path.cwd())], "package": [tidewire.__file__]}
    yield pa.RecordBatch.from_pydict(found)


def main(url: str, topic: str, target: str, master: str, *, register: bool) -> None:
    """Run the job."""
    spark = (
        SparkSession.builder.master(master)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.executor.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", "warehouse")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    if register:
        from tidewire.spark import TidewireSource

        spark.dataSource.register(TidewireSource)
    frame = spark.read.format("tidewire").options(service_url=url, topic=topic).load()
    tasks = frame.mapInArrow(where, "rows long, process long, folder string, package string").collect()
    frame.write.format("tidewire").options(service_url=url, topic=target).mode("append").save()
    stream = (
        spark.readStream.format("tidewire").options(service_url=url, topic=target, starting_position="earliest").load()
    )
    query = (
        stream.selectExpr("CAST(value AS STRING) AS text")
        .writeStream.format("memory")
        .queryName("streamed")
        .option("checkpointLocation", "checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    streamed = sorted(int(row.text) for row in spark.table("streamed").collect())
    spark.stop()
    print(json.dumps({"driver": os.getpid(), "tasks": [task.asDict() for task in tasks], "streamed": streamed}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], register=sys.argv[5:] == ["register"])
