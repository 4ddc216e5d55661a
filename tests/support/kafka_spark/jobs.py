"""Jobs of Spark with its own Kafka connector, in a process of another Python environment: the one of Spark 4.0.5.

It reads a job from each line of standard input, {"job": name, "arguments": {...}}, and writes its result as a line to
standard output: {"result": ...}, or {"error": text}. It ends with its input. It imports Spark alone, because nothing
else is there.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

Options = Mapping[str, str]


class Jobs:
    """Each public method is a job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._queries: dict[str, Any] = {}

    def read(self, options: Options) -> list[dict[str, Any]]:
        """Return a batch of rows, by topic, partition and offset."""
        return _rows(self._spark.read.format("kafka").options(**options).load())

    def write(self, options: Options, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a batch: `topic`, `key`, `value`, and a header `trace`, each as text or null."""
        schema = "topic string, key string, value string, trace string"
        made = self._spark.createDataFrame(
            [(row.get("topic"), row.get("key"), row.get("value"), row.get("trace")) for row in rows], schema
        )
        header = F.struct(F.lit("trace").alias("key"), F.col("trace").cast("binary").alias("value"))
        made = made.withColumn("headers", F.when(F.col("trace").isNotNull(), F.array(header))).drop("trace")
        made.write.format("kafka").options(**options).save()

    def store_available(self, options: Options, checkpoint: str, folder: str) -> int:
        """Store what is there now as Parquet, and go on from the checkpoint. Count the micro-batches with rows."""
        query = self._storing(options, checkpoint, folder).trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.numInputRows > 0 for progress in query.recentProgress)

    def start_storing(self, options: Options, checkpoint: str, folder: str) -> None:
        """Begin to store, in micro-batches, until `stop`."""
        self._queries[checkpoint] = self._storing(options, checkpoint, folder).start()

    def process_all(self, checkpoint: str) -> None:
        """Wait until all that is there now is stored."""
        self._queries[checkpoint].processAllAvailable()

    def stop(self, checkpoint: str) -> None:
        """Stop storing, wherever it is."""
        self._queries.pop(checkpoint).stop()

    def stored(self, folder: str) -> list[dict[str, Any]]:
        """Return what was stored."""
        return _rows(self._spark.read.parquet(folder))

    def copy_available(self, options: Options, target: Options, checkpoint: str) -> None:
        """Write what is there now to another topic, each value turned round, and go on from the checkpoint."""
        copies = self._stream(options).select("key", F.reverse(F.col("value").cast("string")).alias("value"))
        writer = copies.writeStream.format("kafka").options(**target).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()

    def _stream(self, options: Options) -> DataFrame:
        return self._spark.readStream.format("kafka").options(**options).load()

    def _storing(self, options: Options, checkpoint: str, folder: str) -> Any:
        writer = self._stream(options).writeStream.format("parquet")
        return writer.option("path", folder).option("checkpointLocation", checkpoint)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [
        {
            "topic": row["topic"],
            "partition": row["partition"],
            "offset": row["offset"],
            "timestamp_ms": row["timestamp_ms"],
            "key": _text(row["key"]),
            "value": _text(row["value"]),
            "headers": [[one["key"], _text(one["value"])] for one in row["headers"] or ()] if "headers" in row else [],
        }
        for row in frame.withColumn("timestamp_ms", F.unix_millis("timestamp"))
        .orderBy("topic", "partition", "offset")
        .collect()
    ]


def _text(value: bytes | None) -> str | None:
    return None if value is None else bytes(value).decode()


def _session(jars: str, folder: str) -> SparkSession:
    return (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.extraClassPath", jars)
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.local.dir", folder)
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
    spark = _session(*sys.argv[1:])
    print(json.dumps({"result": spark.version}), file=own_output, flush=True)
    _serve(Jobs(spark), own_output)
    spark.stop()
