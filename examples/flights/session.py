"""A Spark session on this machine: two cores, two gigabytes, nothing outside of a folder, and few words."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start_session(name: str, folder: Path) -> SparkSession:
    """A session; what it needs to store on the way goes into the folder."""
    # Spark starts its Python workers by this name; the system's Python would lack what this one has.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # All of it happens on this machine, whatever its name resolves to.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.appName(name)
        # Two cores, and four attempts of each task, as on a cluster: `local[2]` makes one, so that a broker that
        # restarts while a task writes ends the query.
        .master("local[2,4]")
        .config("spark.driver.memory", "2g")
        # Half the processor time for jobs of seconds, in which nothing lives long enough to be worth optimising.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        # Two cores: more partitions would be more state stores and no more speed.
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # In Parquet, times of a zone that everybody can read; Spark's old type for them has none.
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
        # transformWithState keeps its state there.
        .config("spark.sql.streaming.stateStore.providerClass", ROCKS_DB)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.local.dir", str((folder / "spark").absolute()))
        .config("spark.sql.warehouse.dir", str((folder / "warehouse").absolute()))
        .getOrCreate()
    )
