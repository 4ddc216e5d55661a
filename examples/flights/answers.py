"""A second Spark job, a batch job: reads the topics and the archive, for the comparison and the page.

    python -m examples.flights.answers --service-url pulsar://127.0.0.1:6650 --folder build/flights

It writes the topics `hourly` and `chains`, and their archives, as plain Parquet files. It also writes `counts.json`
with two numbers of departures: the committed ones, and all that were ever sent. A reader that ignores transactions
would count the second number.
"""

import argparse
import json
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from .jobs import chains, hourly
from .session import start_session
from .stream import CHAINS, FLIGHTS, HOURLY


def main() -> None:
    """Read everything once."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--service-url", default="pulsar://127.0.0.1:6650")
    parser.add_argument("--folder", type=Path, default=Path("build/flights"))
    given = parser.parse_args()
    folder = given.folder / "answers"
    folder.mkdir(parents=True, exist_ok=True)
    spark = start_session("answers", given.folder)
    for name, topic, columns in (("hourly", HOURLY, hourly.COLUMNS), ("chains", CHAINS, chains.COLUMNS)):
        rows = _read(spark, given.service_url, topic).select(
            f.from_json(f.col("value").cast("string"), columns).alias("row")
        )
        rows.select("row.*").write.parquet(str(folder / name))
        # Spark reads only the files in the sink's log (`_spark_metadata`). A tool that lists the folder, as pandas
        # does, would also read files of attempts that were killed.
        archive = spark.read.schema(columns).parquet(str(given.folder / "archive" / name))
        archive.write.parquet(str(folder / f"{name}-archive"))
    counts = {
        isolation: _read(spark, given.service_url, FLIGHTS, schema="auto", isolation=isolation)
        .where("value.kind = 'departed'")
        .count()
        for isolation in ("read_committed", "read_uncommitted")
    }
    (folder / "counts.json").write_text(json.dumps(counts))
    spark.stop()
    print("done", flush=True)


def _read(spark: SparkSession, service_url: str, topic: str, **options: str) -> DataFrame:
    return spark.read.format("tidewire").option("service_url", service_url).options(topic=topic, **options).load()


if __name__ == "__main__":
    main()
