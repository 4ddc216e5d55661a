"""The unmodified Java v5 client of Apache Pulsar and Spark read each other's JSON."""

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Final

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from scripts.need import place
from tests.support.admin import Admin
from tests.support.java import QUICK_JAVA
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.spark.conftest import spark

__all__ = ["spark"]

pytestmark = pytest.mark.interop

PROGRAM: Final = "tidewire.interop.SparkValues"
PROGRAM_SECONDS_MAX: Final = 120.0
MOMENT: Final = datetime(2013, 1, 1, 12, 0, 0, 123_000, tzinfo=UTC)
KIND: Final = "value struct<at: timestamp, on: date, price: decimal(10,2), data: binary>"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


def load(spark: SparkSession, broker: RunningBroker, topic: str) -> DataFrame:
    options = {"service_url": broker.service_url, "topic": topic, "schema": "auto"}
    return spark.read.format("tidewire").options(**options).load().select("value")


def test_java_reads_what_spark_wrote_and_the_other_way_round(spark: SparkSession, broker: RunningBroker) -> None:
    """A class of plain types declares no times, and its schema is the newest then: Spark shows numbers and text."""
    topic = Admin(broker.http_url).new_topic()
    value = Row(at=MOMENT, on=date(1970, 1, 3), price=Decimal("12.30"), data=bytearray(b"\xff\0"))
    frame = spark.createDataFrame([Row(value=value)], KIND)
    options = {"service_url": broker.service_url, "topic": topic, "schema": "json"}
    frame.write.format("tidewire").options(**options).mode("append").save()
    assert load(spark, broker, topic).collect() == frame.collect()
    target = place("pulsar-java-client")
    command = ["java", *QUICK_JAVA, "-cp", f"{target}/classes:{target}/lib/*", PROGRAM, broker.service_url, topic]
    told = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PROGRAM_SECONDS_MAX)
    assert told.returncode == 0, told.stderr[-5_000:]
    expected = {"at": 1_357_041_600_123, "on": 2, "price": "12.30", "data": "/wA="}
    assert json.loads(told.stdout.splitlines()[-1]) == expected
    read = [row.value.asDict() for row in load(spark, broker, topic).collect()]
    assert read == [{"at": 1_357_041_600_123, "on": 2, "price": "12.30", "data": bytearray(b"\xff\0")}] * 2
