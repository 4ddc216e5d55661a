"""The Spark job: reads the topic `flights`, writes the topics `hourly` and `chains`, and archives those as Parquet.

    echo | python -m examples.flights.stream --service-url pulsar://127.0.0.1:6650 --folder build/flights

Each line of its input starts one run, as a scheduler would every night: it processes all available messages and stops.
To follow the topic continuously, leave out `trigger(availableNow=True)`, start all four queries, and wait for
`spark.streams.awaitAnyTermination()`: the first query that fails ends the job. The checkpoints in the folder hold the
job's progress. So it may be killed anywhere, and any number of times.
"""

import argparse
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from .flights import data_folder
from .jobs import chains, hourly
from .session import start_session

FLIGHTS = "topic://public/default/flights"
HOURLY = "topic://public/default/hourly"
CHAINS = "topic://public/default/chains"


class Job:
    """The queries, with one broker and one folder."""

    def __init__(self, spark: SparkSession, service_url: str, folder: Path) -> None:
        """Set up; nothing is started yet."""
        self._spark = spark
        self._service_url = service_url
        self._folder = folder
        self._progress = Progress()
        spark.streams.addListener(self._progress)

    def run(self) -> None:
        """Process all messages that are available now."""
        weather = hourly.read_weather(self._spark, data_folder() / "weather.csv")
        hours = hourly.with_weather(hourly.departures(self._events("hourly")), weather)
        produced = [
            self._produce("hourly", HOURLY, hours, "origin", "hour"),
            self._produce("chains", CHAINS, chains.late_chains(self._events("chains")), "tailnum", "started"),
        ]
        self._progress.wait_for_end(produced)
        archived = [self._archive("hourly", HOURLY, hourly.COLUMNS), self._archive("chains", CHAINS, chains.COLUMNS)]
        self._progress.wait_for_end(archived)

    def _events(self, query: str) -> DataFrame:
        """Read the flights' events. The query's subscription shows its progress, and retains what it has not read."""
        return self._read(FLIGHTS, schema="auto", subscription=query).select("event_time", "value.*")

    def _read(self, topic: str, **options: str) -> DataFrame:
        stream = self._spark.readStream.format("tidewire").option("service_url", self._service_url)
        return stream.options(topic=topic, starting_position="earliest", **options).load()

    def _produce(self, name: str, topic: str, rows: DataFrame, key: str, time: str) -> StreamingQuery:
        """Write each row as JSON to a topic. The rows of a micro-batch become visible together, and exactly once."""
        messages = rows.select(
            f.to_json(f.struct("*")).alias("value"), f.col(key).alias("key"), f.col(time).alias("event_time")
        )
        writer = messages.writeStream.format("tidewire").option("service_url", self._service_url)
        return self._start(name, writer.option("topic", topic))

    def _archive(self, name: str, topic: str, columns: str) -> StreamingQuery:
        """Archive a topic's JSON as Parquet."""
        rows = (
            self._read(topic).select(f.from_json(f.col("value").cast("string"), columns).alias("row")).select("row.*")
        )
        writer = rows.writeStream.format("parquet").option("path", str(self._folder / "archive" / name))
        return self._start(f"archive of {name}", writer)

    def _start(self, name: str, writer: DataStreamWriter) -> StreamingQuery:
        checkpoint = self._folder / "checkpoints" / name.replace(" ", "-")
        writer = writer.queryName(name).outputMode("append").option("checkpointLocation", str(checkpoint))
        return writer.trigger(availableNow=True).start()


class Progress(StreamingQueryListener):
    """Prints a line for each micro-batch."""

    def __init__(self) -> None:
        self._ended = threading.Semaphore(0)

    def wait_for_end(self, queries: list[StreamingQuery]) -> None:
        """Wait until these queries have ended and all their lines are printed. Spark reports progress with a delay."""
        for query in queries:
            query.awaitTermination()
            self._ended.acquire()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing to say."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing to say."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Note that the query's last line was printed."""
        self._ended.release()

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Print the line."""
        progress = event.progress
        watermark = progress.eventTime.get("watermark", "")[:16].replace("T", " ")
        print(
            f"{progress.name}: batch {progress.batchId}, {progress.numInputRows:,} rows"
            + (f", watermark {watermark}" if watermark else ""),
            flush=True,
        )


def main() -> None:
    """Run once for each line of standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service-url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--folder", type=Path, default=Path("build/flights"), help="folder for checkpoints and Parquet")
    given = parser.parse_args()
    spark = start_session("flights", given.folder)
    job = Job(spark, given.service_url, given.folder)
    print("ready", flush=True)
    for _ in sys.stdin:
        job.run()
        print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
