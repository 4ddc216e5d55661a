"""Spark 4.0.5 with its own Kafka connector, in a process of its own. `jobs.py` is what it can do.

    with running_spark(folder) as spark:
        spark.version
        spark.ask("read", options={...})

scripts/need.py installs SPARK and CONNECTOR.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from scripts.need import place
from tests.support.spark_process import RunningSpark, spark_process

SPARK: Final = "spark:4.0.5"
CONNECTOR: Final = "maven:org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
_TAKEN: Final = (
    "spark-sql-kafka-0-10_2.13-*.jar",
    "spark-token-provider-kafka-0-10_2.13-*.jar",
    "kafka-clients-*.jar",
    "commons-pool2-*.jar",
)
"""Of what CONNECTOR brings. Spark has the rest."""


@contextmanager
def running_spark(folder: Path) -> Iterator[RunningSpark]:
    """Run Spark with `folder` as its working directory, until the end of the block."""
    connector = place(CONNECTOR)
    jars = ":".join(str(next(connector.glob(pattern))) for pattern in _TAKEN)
    script = Path(__file__).with_name("jobs.py")
    with spark_process(place(SPARK), script, [jars, str(folder / "local")], folder) as spark:
        yield spark
