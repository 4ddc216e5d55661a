"""A local Spark session: two cores, two gigabytes, all files in one folder, and little output."""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def start_session(name: str, folder: Path) -> SparkSession:
    """Start a session. Its temporary files go into `folder`."""
    # Spark starts its Python workers with this interpreter. The system's Python would lack the packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Spark stays on loopback, whatever the machine's name resolves to.
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.appName(name)
        # Two cores, and four attempts of each task, as on a cluster. With `local[2]` there is one attempt, so a broker
        # that restarts while a task writes would end the query.
        .master("local[2,4]")
        .config("spark.driver.memory", "2g")
        # These options halve the CPU time of jobs of seconds: they end before the JVM's optimisations pay off.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        # On two cores, more partitions would only add state stores, not speed.
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        # Write Parquet timestamps with a time zone. Spark's older default type has none.
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
