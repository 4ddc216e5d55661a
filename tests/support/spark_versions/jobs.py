"""Jobs of some version of Spark with format `tidewire`, in a process of another Python environment (spark_process.py).

It imports Spark alone. Spark finds Tidewire where the variables of the process say.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from pyspark.sql import SparkSession

Options = Mapping[str, str]


class Jobs:
    """Each public method is a job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._query: Any = None

    def read(self, options: Options) -> list[list[Any]]:
        """Return a batch of rows: key, value, event time in milliseconds and properties, by key and position."""
        frame = self._spark.read.format("tidewire").options(**options).load()
        rows = frame.selectExpr("key", "string(value) AS value", "unix_millis(event_time)", "properties", "position")
        return [list(row[:4]) for row in rows.orderBy("key", "position").collect()]

    def write(self, options: Options, rows: list[list[Any]]) -> None:
        """Write a batch of rows: key, value, event time in milliseconds, and the value of a property."""
        made = self._spark.createDataFrame(rows, "key string, value string, millis long, trace string")
        ready = made.selectExpr(
            "key", "value", "timestamp_millis(millis) AS event_time", "map('trace', trace) AS properties"
        )
        ready.write.format("tidewire").options(**options).mode("append").save()

    def write_in_thread(self, options: Options, is_prepared: bool) -> None:
        """Write a row in a thread of its own, perhaps after what the page about Spark says to call first."""
        frame = self._spark.createDataFrame([["k", "v"]], "key string, value string")

        def write() -> None:
            if is_prepared:
                self._spark.createDataFrame([], "n int")
            frame.write.format("tidewire").options(**options).mode("append").save()

        with ThreadPoolExecutor(1) as threads:
            threads.submit(write).result()

    def write_numbers(self, options: Options, count: int) -> None:
        """Write a batch of structs with a number in each."""
        made = self._spark.range(count).selectExpr("struct(id AS number) AS value")
        made.write.format("tidewire").options(**options).mode("append").save()

    def read_numbers(self, options: Options) -> list[int]:
        """Return the numbers of a batch of such structs."""
        frame = self._spark.read.format("tidewire").options(**options).load()
        return [row.number for row in frame.select("value.number").orderBy("number").collect()]

    def start_copying(self, source: Options, target: Options, checkpoint: str) -> None:
        """Begin to copy a topic to another one, and go on from the checkpoint."""
        stream = self._spark.readStream.format("tidewire").options(**source).load()
        rows = stream.select("key", "value", "event_time", "properties")
        writer = rows.writeStream.format("tidewire").options(**target).option("checkpointLocation", checkpoint)
        self._query = writer.start()

    def process_all(self) -> None:
        """Wait until all that is there now is copied."""
        self._query.processAllAvailable()

    def stop(self) -> list[int]:
        """Stop copying. Return the number of rows in each micro-batch with rows."""
        self._query.stop()
        return [progress.numInputRows for progress in self._query.recentProgress if progress.numInputRows]

    def copy_available(self, source: Options, target: Options, checkpoint: str) -> list[int]:
        """Copy in micro-batches until the query ends by itself. Return the number of rows in each with rows."""
        stream = self._spark.readStream.format("tidewire").options(**source).load()
        writer = stream.select("key", "value").writeStream.format("tidewire").options(**target)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]

    def forget_last_commit(self, checkpoint: str) -> None:
        """Bring the checkpoint to where a death leaves it between the sink's commit and Spark's own record of it."""
        commits = Path(checkpoint, "commits")
        last = max(commits.iterdir(), key=lambda path: int(path.name) if path.name.isdigit() else -1)
        last.unlink()
        Path(commits, f".{last.name}.crc").unlink(missing_ok=True)


def _session() -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", "local")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def _serve(jobs: Jobs, answers: IO[str]) -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        job: Callable[..., Any] = getattr(jobs, asked["job"])
        try:
            answer = {"result": job(**asked["arguments"])}
        except Exception as failed:
            # The test that asked for the job fails with it.
            answer = {"error": str(failed)[:4000]}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    # Spark prints to standard output, too.
    own_output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    spark = _session()
    print(json.dumps({"result": spark.version}), file=own_output, flush=True)
    _serve(Jobs(spark), own_output)
    spark.stop()
