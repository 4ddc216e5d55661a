"""A job from topics to topics that keeps its progress only at the broker."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest
import trio
from pyspark.sql import DataFrame, SparkSession

import tidewire
from tests.support import dying_transformer
from tests.support.admin import Admin
from tests.support.dying_transformer import JOB, MOMENTS, copied
from tests.support.java import QUICK_ENVIRONMENT
from tests.support.processes import RunningBroker
from tests.tidewire.spark.conftest import broker as broker
from tests.tidewire.spark.conftest import spark as spark
from tidewire.spark import ConsumeTransformProduce
from tidewire.spark.errors import SubscriptionTaken

CHECKOUT: Final = Path(__file__).parents[2]

pytestmark = [pytest.mark.interop, pytest.mark.timeout(590)]


@pytest.fixture
def topics(broker: RunningBroker) -> tuple[str, str]:
    """Create a source and a target, with two segments each."""
    admin = Admin(broker.http_url)
    return admin.new_topic(2), admin.new_topic(2)


def send(broker: RunningBroker, topic: str, *numbers: int) -> None:
    async def run() -> None:
        with trio.fail_after(60):
            async with tidewire.connect(broker.service_url) as client, client.producer(topic) as producer:
                for number in numbers:
                    await producer.enqueue(b"%d" % number, key=f"k{number % 20}")

    trio.run(run)


def values(spark: SparkSession, broker: RunningBroker, topic: str) -> list[int]:
    frame = spark.read.format("tidewire").options(service_url=broker.service_url, topic=topic).load()
    return sorted(int(bytes(row.value)) for row in frame.select("value").collect())


def made(
    spark: SparkSession,
    broker: RunningBroker,
    topics: tuple[str, str],
    transform: Callable[[DataFrame], DataFrame] = copied,
    **source: str,
) -> ConsumeTransformProduce:
    given = {"service_url": broker.service_url, "topic": topics[0], **source}
    return ConsumeTransformProduce(spark, name=JOB, source=given, transform=transform, sink={"topic": topics[1]})


def drive_to_death(log: Path, arguments: list[str]) -> None:
    """Run the driver that kills itself. On return its Spark is dead, too."""
    environment = {
        **os.environ,
        **QUICK_ENVIRONMENT,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(CHECKOUT),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with log.open("wb") as said:
        driver = subprocess.Popen(
            [sys.executable, dying_transformer.__file__, *arguments],
            cwd=log.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
        try:
            status = driver.wait(300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
            driver.wait()
    assert status == -signal.SIGKILL, log.read_text(encoding="utf-8")


def test_a_job_goes_on_where_it_was_through_splits_and_others_see_where(
    spark: SparkSession, broker: RunningBroker, topics: tuple[str, str]
) -> None:
    """T20, T22, D17: each message counts once, in batches of bounded size; only the subscription stores progress."""
    send(broker, topics[0], *range(100))
    Admin(broker.http_url).split_now(topics[0], 0)
    send(broker, topics[0], *range(100, 200))
    assert made(spark, broker, topics, max_rows_per_trigger="60").run_available() >= 3
    assert values(spark, broker, topics[1]) == list(range(200))
    assert Admin(broker.http_url).subscription(topics[0], JOB)["msgBacklog"] == 0
    send(broker, topics[0], *range(200, 250))
    Admin(broker.http_url).split_now(topics[0], 1)
    send(broker, topics[0], *range(250, 300))
    assert Admin(broker.http_url).subscription(topics[0], JOB)["msgBacklog"] > 0
    job = made(spark, broker, topics)
    assert job.run_available() == 2, "what was sent before a split is in a batch before what was sent after it"
    assert values(spark, broker, topics[1]) == list(range(300))
    assert job.run_available() == 0


def test_a_job_is_told_of_what_comes_and_stopped_from_outside(
    spark: SparkSession, broker: RunningBroker, topics: tuple[str, str]
) -> None:
    """D2: a batch keeps its plan through a split; while the job runs, nobody else runs it."""
    begun: list[DataFrame] = []
    changed = threading.Semaphore(0)

    def transform(frame: DataFrame) -> DataFrame:
        begun.append(frame)
        if len(begun) == 1:
            # Behind the plan, before Spark reads: none of it is in this batch.
            Admin(broker.http_url).split_now(topics[0], 0)
            send(broker, topics[0], *range(20, 40))
        changed.release()
        return copied(frame)

    send(broker, topics[0], *range(20))
    job = made(spark, broker, topics, transform)
    failures: list[BaseException] = []

    def run() -> None:
        try:
            job.run()
        except BaseException as failure:
            failures.append(failure)
            changed.release()

    running = threading.Thread(target=run)
    running.start()
    try:
        assert changed.acquire(timeout=100)
        assert not failures
        with pytest.raises(SubscriptionTaken, match="another driver may run the job"):
            # Long enough for any answer. The job insists on the subscription for as long.
            made(spark, broker, topics, operation_timeout_seconds="3").run_available()
        assert changed.acquire(timeout=100), "what came meanwhile is a batch of its own"
        # The job waits by now, or will; either way it is told.
        send(broker, topics[0], *range(40, 60))
        assert changed.acquire(timeout=100)
    finally:
        job.stop()
        running.join(100)
    assert not running.is_alive()
    assert not failures
    made(spark, broker, topics).run_available()
    assert values(spark, broker, topics[1]) == list(range(60))


def test_a_transformation_that_fails_leaves_nothing_and_the_next_run_begins_with_the_same(
    spark: SparkSession, broker: RunningBroker, topics: tuple[str, str]
) -> None:
    """D17: neither output nor acknowledgement is left."""
    send(broker, topics[0], *range(20))

    def fail(frame: DataFrame) -> DataFrame:
        raise ArithmeticError("no")

    with pytest.raises(ArithmeticError):
        made(spark, broker, topics, fail).run_available()
    assert Admin(broker.http_url).subscription(topics[0], JOB)["msgBacklog"] > 0
    assert made(spark, broker, topics).run_available() == 1
    assert values(spark, broker, topics[1]) == list(range(20))


def test_a_driver_that_is_killed_leaves_all_that_the_next_one_needs_with_the_broker(
    spark: SparkSession, broker: RunningBroker, topics: tuple[str, str], tmp_path: Path
) -> None:
    """T25, D8, D17: it is killed while it writes, and after the decision; each message is in the output once."""
    for number, moment in enumerate(MOMENTS):
        send(broker, topics[0], *range(number * 100, number * 100 + 100))
        drive_to_death(tmp_path / moment, [broker.service_url, *topics, moment])
        committed = list(range(200)) if moment == "committed" else []
        assert values(spark, broker, topics[1]) == committed
    send(broker, topics[0], *range(200, 220))
    assert made(spark, broker, topics).run_available() == 1
    assert values(spark, broker, topics[1]) == list(range(220))
    assert Admin(broker.http_url).subscription(topics[0], JOB)["msgBacklog"] == 0
