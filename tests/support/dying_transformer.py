"""The driver of a Spark job that is killed (kill -9) with all its processes, at a chosen moment of its first batch.

    python dying_transformer.py URL SOURCE TARGET MOMENT

- `writing`: the batch's input is acknowledged in an open transaction, and some output is written in other transactions
- `committed`: the batch is committed, but the job does not know it yet
"""

import os
import signal
import sys
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from tidewire.protocol.coordination import TransactionId
from tidewire.spark.job_progress import Batch
from tidewire.spark.transforming import ConsumeTransformProduce

MOMENTS: Final = ("writing", "committed")
JOB: Final = "copy"
WRITTEN_BEFORE: Final = 1
"""Record batches of a task that are passed on before the driver dies."""


def kill(process: int) -> None:
    """Kill all of it, as a crash would."""
    os.kill(process, signal.SIGKILL)


def copied(frame: DataFrame) -> DataFrame:
    """Return what the job makes of its input."""
    return frame.selectExpr("key", "value")


class Dying(ConsumeTransformProduce):
    """A transformation whose driver dies after the write, unless it died before."""

    moment = ""

    def _write(self, rows: DataFrame, batch: Batch, transaction: TransactionId) -> None:
        super()._write(rows, batch, transaction)
        if self.moment == "committed":
            kill(os.getpid())


def main(url: str, source: str, target: str, moment: str) -> None:
    """Run the job until it dies."""
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    driver = os.getpid()

    def dying(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(batches):
            if number == WRITTEN_BEFORE:
                kill(driver)
            yield batch

    def transform(frame: DataFrame) -> DataFrame:
        rows = copied(frame)
        # The rows of several record batches are in one task, so that some are written before it dies.
        return rows.repartition(2).mapInArrow(dying, rows.schema) if moment == "writing" else rows

    Dying.moment = moment
    options = {"service_url": url, "topic": source}
    Dying(spark, name=JOB, source=options, transform=transform, sink={"topic": target}).run_available()


if __name__ == "__main__":
    main(*sys.argv[1:])
