"""Spark's answer: the query a data engineer would write to count departures by hour and join them with the weather.

Spark runs in this process and in a Java process beside it. Their output goes to a file, so it does not mix with the
demo's own lines. Their temporary data goes to a folder, so nothing is left behind.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pandas as pd

from tidewire.cli.demo.expected import COLUMNS, COUNTS, HAS_WEATHER, KEY, LATE_MINUTES, WEATHER
from tidewire.cli.endings import CommandFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CORES: Final = 2
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""These options halve the CPU time of a job of seconds: it ends before the JVM's optimisations pay off."""
LOG_LINES_SHOWN: Final = 20
STANDARD_ERROR: Final = 2
"""Its file descriptor."""

_VALUE: Final = "kind STRING, delay INT"
_WEATHER: Final = (
    "origin STRING, year INT, month INT, day INT, hour INT, temp DOUBLE, dewp DOUBLE, humid DOUBLE, wind_dir DOUBLE, "
    "wind_speed DOUBLE, wind_gust DOUBLE, precip DOUBLE, pressure DOUBLE, visib DOUBLE, time_hour TIMESTAMP"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What Spark found in the topic."""

    windows: pd.DataFrame
    """Its columns are `expected.COLUMNS`."""
    kinds: dict[str, int]
    """Events of each kind."""


def ask_spark(service_url: str, topic: str, weather: Path, folder: Path, doing: Callable[[str], None]) -> Answer:
    """Read the topic from the broker and compute the answer. Spark's temporary files go into `folder`.

    `doing` is told what Spark does next.

    Raises:
        CommandFailed: Spark failed; the text has the end of its log.
    """
    log = folder / "spark.log"
    try:
        doing("Spark starts")
        with _standard_error_to(log), _session(folder) as spark:
            doing("Spark reads the events")
            events = _events(spark, service_url, topic).cache()
            kinds = {row["kind"]: row["count"] for row in events.groupBy("kind").count().collect()}
            doing("Spark counts by hour and joins the weather")
            windows = _windows(spark, events, weather).toPandas()
    except Exception as error:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        said = str(error).splitlines()[:LOG_LINES_SHOWN]
        shown = "\n".join(f"  {line}" for line in [*said, "The end of Spark's log:", *lines])
        raise CommandFailed(f"The Spark job failed ({type(error).__name__}):\n{shown}") from error
    return Answer(windows.sort_values(KEY)[COLUMNS].reset_index(drop=True), kinds)


def _events(spark: "SparkSession", service_url: str, topic: str) -> "DataFrame":
    from pyspark.sql import functions as f

    messages = spark.read.format("tidewire").option("service_url", service_url).option("topic", topic).load()
    value = f.from_json(f.col("value").cast("string"), _VALUE)
    return messages.select("key", "event_time", value.alias("event")).select("key", "event_time", "event.*")


def _windows(spark: "SparkSession", events: "DataFrame", weather: Path) -> "DataFrame":
    from pyspark.sql import functions as f

    departures = events.where("kind = 'departed'").withColumnRenamed("key", "origin")
    counted = departures.groupBy("origin", f.window("event_time", "1 hour")).agg(
        f.count("*").alias("departures"),
        f.sum("delay").alias("delay_minutes"),
        f.count_if(f.col("delay") > LATE_MINUTES).alias("late"),
    )
    by_start = counted.select("origin", f.unix_seconds("window.start").alias("window"), *COUNTS)
    observed = spark.read.csv(str(weather), header=True, schema=_WEATHER, nullValue="NA")
    observed = observed.select(
        "origin", f.unix_seconds("time_hour").alias("window"), f.lit(True).alias(HAS_WEATHER), *WEATHER
    )
    return by_start.join(observed, KEY, "left").fillna({HAS_WEATHER: False})


@contextmanager
def _session(folder: Path) -> "Iterator[SparkSession]":
    # Spark starts its Python workers with this interpreter. The system's Python would lack this package.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark stays on loopback, whatever the machine's name resolves to.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master(f"local[{CORES}]")
        .appName("tidewire demo")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", CORES)
        .config("spark.driver.extraJavaOptions", JAVA_OPTIONS)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "WARN")
        .config("spark.local.dir", str(folder / "spark"))
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .getOrCreate()
    )
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _standard_error_to(path: Path) -> Iterator[None]:
    """Redirect standard error of this process, and of processes it starts in the block, to a file."""
    sys.stderr.flush()
    kept = os.dup(STANDARD_ERROR)
    with path.open("ab") as file:
        os.dup2(file.fileno(), STANDARD_ERROR)
    try:
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, STANDARD_ERROR)
        os.close(kept)
