"""The subjects of scripts/bench_spark.py, as Spark's users reach them: the formats "tidewire" and "kafka".

There is no Kafka connector for pyspark 4.3. The connector of 4.2.0 with the Kafka client of 4.0.0 works in pyspark
4.3.0 for batches and streams. So both formats are measured in one Spark session.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.request import Request, urlopen

from pyspark.sql import DataFrame, SparkSession

from scripts.need import place
from scripts.reference_kafka import RunningKafka
from scripts.spark_ceiling import Ceiling
from tests.support.processes import RunningBroker

CONNECTOR: Final = "jar:org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
CONNECTOR_NEEDS: Final = "maven:org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0"
"""Names for scripts/need.py. Of the second, only what the connector needs is taken."""
_TAKEN: Final = ("spark-token-provider-kafka-0-10_2.13-*.jar", "kafka-clients-*.jar", "commons-pool2-*.jar")

PARTITIONS: Final = 2
"""Segments of a topic here, partitions there."""
KAFKA_BATCH_BYTES: Final = 256 * 1024
KAFKA_LINGER_MS: Final = 50
"""By default Kafka makes batches of 16 KiB. Larger ones are faster here, and closer to those of Tidewire's sink."""

ROOT: Final = Path(__file__).resolve().parent.parent


class Subject(Protocol):
    """One of the two systems."""

    @property
    def name(self) -> str:
        """As in tables."""

    @property
    def pid(self) -> int:
        """Of its broker."""

    def make_topic(self, name: str) -> None:
        """A topic of two parts."""

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        """All of a topic."""

    def write(self, frame: DataFrame, topic: str) -> None:
        """Columns key and value to a topic."""

    def stream(self, spark: SparkSession, source: str, target: str, checkpoint: Path) -> Any:  # noqa: ANN401
        """A query that copies one topic to another, started."""


class Tidewire:
    """Ours."""

    name = "tidewire"

    def __init__(self, broker: RunningBroker) -> None:
        self.broker = broker
        self.pid = broker.pid

    def make_topic(self, name: str) -> None:
        """See `Subject`."""
        url = f"{self.broker.http_url}/admin/v2/scalable/public/default/{name}?numInitialSegments={PARTITIONS}"
        with urlopen(Request(url, method="PUT")):  # noqa: S310 - the broker just started
            pass

    def _options(self, topic: str) -> dict[str, str]:
        return {"service_url": self.broker.service_url, "topic": f"topic://public/default/{topic}"}

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        """See `Subject`."""
        return spark.read.format("tidewire").options(**self._options(topic)).load()

    def read_only(self, spark: SparkSession, topic: str, columns: str) -> DataFrame:
        """Some columns, of which Kafka's source always has all."""
        return spark.read.format("tidewire").options(columns=columns, **self._options(topic)).load()

    def write(self, frame: DataFrame, topic: str) -> None:
        """See `Subject`."""
        frame.write.format("tidewire").options(**self._options(topic)).mode("append").save()

    def stream(self, spark: SparkSession, source: str, target: str, checkpoint: Path) -> Any:  # noqa: ANN401
        """See `Subject`."""
        frame = spark.readStream.format("tidewire").options(**self._options(source)).load().select("key", "value")
        writer = frame.writeStream.format("tidewire").options(**self._options(target))
        return writer.option("checkpointLocation", str(checkpoint)).start()


class Kafka:
    """Apache Kafka."""

    name = "kafka"

    def __init__(self, kafka: RunningKafka) -> None:
        self.servers = kafka.bootstrap_servers
        self.pid = kafka.pid

    def make_topic(self, name: str) -> None:
        """See `Subject`. Automatic creation would happen during the measured write."""
        jvm: Any = SparkSession.active()._jvm  # noqa: SLF001 - there is no other way to Java's classes
        admin, nothing_said = jvm.org.apache.kafka.clients.admin, jvm.java.util.Optional.empty()
        settings, topics = jvm.java.util.Properties(), jvm.java.util.ArrayList()
        settings.put("bootstrap.servers", self.servers)
        # The broker's setting decides the number of partitions.
        topics.add(admin.NewTopic(name, nothing_said, nothing_said))
        client = admin.AdminClient.create(settings)
        try:
            client.createTopics(topics).all().get()
        finally:
            client.close()

    def read(self, spark: SparkSession, topic: str) -> DataFrame:
        """See `Subject`."""
        reader = spark.read.format("kafka").option("kafka.bootstrap.servers", self.servers)
        return reader.option("subscribe", topic).load()

    def write(self, frame: DataFrame, topic: str) -> None:
        """See `Subject`."""
        writer = frame.write.format("kafka").option("kafka.bootstrap.servers", self.servers).option("topic", topic)
        writer.option("kafka.batch.size", KAFKA_BATCH_BYTES).option("kafka.linger.ms", KAFKA_LINGER_MS).save()

    def stream(self, spark: SparkSession, source: str, target: str, checkpoint: Path) -> Any:  # noqa: ANN401
        """See `Subject`. Its producer waits for nothing here, since latency is what is asked for."""
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        frame = reader.option("subscribe", source).load().select("key", "value")
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", self.servers)
        return writer.option("topic", target).option("checkpointLocation", str(checkpoint)).start()


@contextmanager
def session(folder: Path, *, with_kafka: bool) -> Iterator[SparkSession]:
    """Spark on two cores; its Python is this one and finds this checkout."""
    os.environ |= {
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(ROOT),
    }
    builder = SparkSession.builder.master("local[2]")
    if with_kafka:
        needs = place(CONNECTOR_NEEDS)
        jars = [place(CONNECTOR), *(next(needs.glob(pattern)) for pattern in _TAKEN)]
        builder = builder.config("spark.driver.extraClassPath", ":".join(map(str, jars)))
    spark = (
        builder.config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.local.dir", str(folder / "local"))
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    try:
        spark.dataSource.register(Ceiling)
        yield spark
    finally:
        spark.stop()


class Cpu:
    """CPU seconds used since it was made: by a broker, by Spark's JVM, by its Python workers."""

    def __init__(self, spark: SparkSession, broker: int | None) -> None:
        gateway = spark.sparkContext._gateway  # noqa: SLF001 - nobody else says it
        assert gateway is not None, "set by the session"
        self._jvm: int = gateway.proc.pid
        self._broker = broker
        self._before = self._now()

    def used(self) -> dict[str, float]:
        """By each."""
        # A worker that was idle for long ends, and its time is no longer there.
        return {who: max(0.0, seconds - self._before[who]) for who, seconds in self._now().items()}

    def _now(self) -> dict[str, float]:
        stats = dict(_all_stats())
        used = {"broker": 0.0, "jvm": 0.0, "python": 0.0}
        if self._broker is not None:
            used["broker"] = _seconds(stats[self._broker][11:13])
        # Spark is started by a script, whose process it takes over; workers are children of daemons, its children.
        family = [self._jvm]
        for pid in family:
            family += [child for child, fields in stats.items() if int(fields[1]) == pid]
            name = stats[pid][-1]
            # Workers that ended count with the daemon that they belonged to.
            used["jvm" if "java" in name else "python"] += _seconds(stats[pid][11 : 13 if "java" in name else 15])
        return used


def _all_stats() -> Iterator[tuple[int, list[str]]]:
    """Of each process what stands behind its name (proc(5)), and last its name."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                head, _, fields = (folder / "stat").read_text().rpartition(") ")
                yield int(folder.name), [*fields.split(), head.partition(" (")[2]]
            except OSError:
                continue  # It has ended meanwhile.


def _seconds(ticks: list[str]) -> float:
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def timed_write_to_nothing(frame: DataFrame) -> float:
    """Seconds to read all of it, whole rows."""
    start = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - start
