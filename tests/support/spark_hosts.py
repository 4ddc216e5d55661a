"""A Spark cluster of two hosts on one machine. Spark runs a task a second time only on another host.

    with spark_on_two_hosts(folder) as spark:
        ...

It is a standalone cluster whose master and workers run in the driver's JVM, as with `local-cluster`. But each worker
listens on its own loopback address, so Spark treats it as a separate host. Each has one executor with one core, whose
Python imports from this checkout. Spark runs slow tasks a second time as soon as half of a stage is done.

Left out: a shuffle service, and more than one application.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from tests.support.java import QUICK_JAVA, QUICK_SPARK

CHECKOUT: Final = Path(__file__).parents[2]
DRIVER: Final = "127.0.0.1"
HOSTS: Final = ("127.0.0.2", "127.0.0.3")
MEMORY_MB: Final = 512

SETTINGS: Final = {
    "spark.driver.bindAddress": DRIVER,
    "spark.driver.host": DRIVER,
    "spark.executor.extraJavaOptions": " ".join(QUICK_JAVA),
    "spark.executor.memory": f"{MEMORY_MB}m",
    "spark.executorEnv.PYTHONPATH": str(CHECKOUT),
    "spark.locality.wait": "0",
    "spark.log.level": "ERROR",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@contextmanager
def spark_on_two_hosts(folder: Path) -> Iterator[SparkSession]:
    """See the module's docstring; everything is written below `folder`."""
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
            patch.setitem(os.environ, name, sys.executable)
        patch.setitem(os.environ, "SPARK_LOCAL_IP", DRIVER)
        # One JVM serves all tests of this process.
        SparkContext._ensure_initialized(conf=SparkConf().set(*QUICK_SPARK))
        gateway: Any = SparkContext._gateway
        jvm: Any = SparkContext._jvm
        deploy, options = jvm.org.apache.spark.deploy, jvm.org.apache.spark.SparkConf(False)
        options.set("spark.driver.host", DRIVER)
        master = deploy.master.Master.startRpcEnvAndEndpoint(DRIVER, 0, 0, options)._1()
        stack.callback(master.shutdown)
        url = f"spark://{DRIVER}:{master.address().port()}"
        urls = gateway.new_array(jvm.java.lang.String, 1)
        urls[0] = url
        nothing = jvm.scala.Option.empty()
        for number, host in enumerate(HOSTS):
            worker = deploy.worker.Worker.startRpcEnvAndEndpoint(
                host, 0, 0, 1, MEMORY_MB, urls, str(folder / "work"), jvm.scala.Some(number), options, nothing
            )
            stack.callback(worker.shutdown)
        conf = SparkConf().setMaster(url).setAppName("two hosts").setAll(list(SETTINGS.items()))
        conf.set("spark.local.dir", str(folder / "local")).set("spark.sql.warehouse.dir", str(folder / "warehouse"))
        session = SparkSession.builder.config(conf=conf).getOrCreate()
        stack.callback(session.stop)
        yield session
