"""A streaming job as its user would write it: it writes one topic's rows as Parquet files and as messages.

    spark-submit tests/support/spark_job.py --service-url pulsar://127.0.0.1:6650 --topic topic://public/default/x
        --checkpoints checkpoints [--parquet rows] [--to topic://public/default/y] [--steering FOLDER]

Each output is a query with its own checkpoint. Each row contains the position of its message, so that a copy can be
matched with its message. With `--steering` the job uses the format of spark_steering.py. It prints `started` when all
queries have started.
"""

import argparse
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

PLACE: Final = "place"
"""The column of Parquet files, and the property of messages, with the original's position."""


def copied(rows: DataFrame) -> DataFrame:
    """Select what is written for each row."""
    position = F.col("position")
    parts = ("segment", position.ledger, position.entry, F.coalesce(position.batch_index, F.lit(-1)))
    return rows.select("key", "value", F.concat_ws(" ", *parts).alias(PLACE))


def as_messages(copies: DataFrame) -> DataFrame:
    """Select the same, with the columns of messages."""
    return copies.select("key", "value", F.create_map(F.lit(PLACE), F.col(PLACE)).alias("properties"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--service-url", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--checkpoints", required=True, type=Path)
    parser.add_argument("--parquet", type=Path)
    parser.add_argument("--to")
    parser.add_argument("--steering", type=Path)
    parser.add_argument("--available-now", action="store_true", help="end when all is read that there is")
    given = parser.parse_args()
    spark = SparkSession.builder.getOrCreate()
    service = {"service_url": given.service_url}
    name = "tidewire"
    if given.steering is not None:
        from tests.support.spark_steering import FORMAT, SteeredTidewire

        name = FORMAT
        spark.dataSource.register(SteeredTidewire)
        service["steering"] = str(given.steering)

    def rows() -> DataFrame:
        options = {**service, "topic": given.topic, "starting_position": "earliest"}
        return copied(spark.readStream.format(name).options(**options).load())

    writers = {}
    if given.parquet is not None:
        writers["parquet"] = rows().writeStream.format("parquet").option("path", str(given.parquet))
    if given.to is not None:
        writers["messages"] = as_messages(rows()).writeStream.format(name).options(**service, topic=given.to)
    queries = []
    for label, writer in writers.items():
        again = {"availableNow": True} if given.available_now else {"processingTime": "100 milliseconds"}
        writer = writer.option("checkpointLocation", str(given.checkpoints / label)).trigger(**again)
        queries.append(writer.queryName(label).start())
    print("started", flush=True)
    if given.available_now:
        for query in queries:
            query.awaitTermination()
    else:
        # A query that ends has failed, and this raises its error.
        spark.streams.awaitAnyTermination()


if __name__ == "__main__":
    main()
