"""One Spark and one broker for all tests of a module: starting Spark costs seconds."""

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.support.admin import Admin
from tests.support.java import QUICK_SPARK
from tests.support.processes import RunningBroker, running_broker
from tidewire.spark.one_sentence import HIDE_CALLS


@pytest.fixture(autouse=True)
def _calls_in_other_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests call in their own process what else runs in Spark's, which an error ends."""
    monkeypatch.setenv(HIDE_CALLS, "")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Run Spark on two cores, with this Python; it writes nothing into the checkout."""
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(os.environ, "PYSPARK_PYTHON", sys.executable)
        patch.setitem(os.environ, "PYSPARK_DRIVER_PYTHON", sys.executable)
        patch.setitem(os.environ, "SPARK_LOCAL_IP", "127.0.0.1")
        session = (
            SparkSession.builder.master("local[2]")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config(*QUICK_SPARK)
            .config("spark.local.dir", str(folder / "local"))
            .config("spark.log.level", "ERROR")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .getOrCreate()
        )
        try:
            yield session
        finally:
            session.stop()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    with running_broker(tmp_path_factory.mktemp("broker") / "data") as broker:
        yield broker


@pytest.fixture
def topic(broker: RunningBroker) -> str:
    """A scalable topic of two segments."""
    return Admin(broker.http_url).new_topic(2)
