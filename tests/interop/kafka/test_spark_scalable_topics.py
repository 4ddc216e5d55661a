"""Spark 4.0.5 with its own Kafka connector reads scalable topics, whose segments split and merge meanwhile."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.admin import Admin
from tests.support.kafka_spark.reading import source, values
from tests.support.processes import RunningBroker
from tests.support.scalable_writer import ScalableWriter, scalable_writer
from tests.support.spark_process import RunningSpark

pytestmark = pytest.mark.interop


@pytest.fixture
def admin(tidewire: RunningBroker) -> Admin:
    """Return what splits and merges at the shared broker."""
    return Admin(tidewire.http_url)


@pytest.fixture
def scalable(admin: Admin, name: str) -> str:
    """Create a scalable topic with two segments, and return its full name. Spark knows it by `name`."""
    return admin.create(f"topic://public/default/{name}", 2)


@pytest.fixture
def writer(tidewire: RunningBroker, scalable: str) -> Iterator[ScalableWriter]:
    """Open a producer of the topic."""
    with scalable_writer(tidewire.service_url, scalable) as made:
        yield made


def write(writer: ScalableWriter, part: str) -> list[str]:
    """Write to all segments: plainly, in a transaction that is committed, and in one that is aborted at last.

    Return what is committed.
    """
    kept, dropped = writer.begin(), writer.begin()
    for key in range(12):
        writer.send(f"{part} plain {key}".encode(), key=f"key {key}")
        writer.send(f"{part} inside {key}".encode(), key=f"key {key}", txn=kept)
        writer.send(f"{part} aborted {key}".encode(), key=f"key {key}", txn=dropped)
    writer.commit(kept)
    writer.abort(dropped)
    return [f"{part} {kind} {key}" for kind in ("plain", "inside") for key in range(12)]


def partitions(rows: list[dict[str, Any]]) -> set[int]:
    """Return the partitions of rows."""
    return {row["partition"] for row in rows}


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
def test_a_batch_has_committed_messages_of_all_segments(
    spark: RunningSpark, tidewire: RunningBroker, name: str, writer: ScalableWriter, admin: Admin, isolation: str
) -> None:
    """K21, K35, K41: sealed segments, too, at either isolation level; nothing of a transaction that is open."""
    topic = f"topic://public/default/{name}"
    options = source(str(tidewire.kafka), name) | {"kafka.isolation.level": isolation}
    expected = write(writer, "first")
    admin.split_now(topic, 0)
    expected += write(writer, "second")
    admin.merge_now(topic, 2, 3)
    expected += write(writer, "third")
    rows = spark.ask("read", options=options)
    assert sorted(values(rows)) == sorted(expected)
    assert partitions(rows) == {0, 1, 2, 3, 4}
    txn = writer.begin()
    for key in range(12):
        writer.send(b"open", key=f"key {key}", txn=txn)
    assert sorted(values(spark.ask("read", options=options))) == sorted(expected)
    writer.commit(txn)
    assert sorted(values(spark.ask("read", options=options))) == sorted([*expected, *["open"] * 12])


def test_a_stream_takes_each_message_once_over_restarts_and_splits(
    spark: RunningSpark, tidewire: RunningBroker, name: str, writer: ScalableWriter, admin: Admin, tmp_path: Path
) -> None:
    """K21, K35, K41: its checkpoint knows fewer partitions than there are. Micro-batches end inside of transactions."""
    topic = f"topic://public/default/{name}"
    options = source(str(tidewire.kafka), name, maxOffsetsPerTrigger="20", failOnDataLoss="true")
    stored = {"checkpoint": str(tmp_path / "checkpoint"), "folder": str(tmp_path / "rows")}
    expected = write(writer, "first")
    assert spark.ask("store_available", options=options, **stored) > 1
    for part, change in (("second", (0,)), ("third", (2, 3)), ("fourth", (4,))):
        if len(change) == 1:
            admin.split_now(topic, *change)
        else:
            admin.merge_now(topic, *change)
        expected += write(writer, part)
        assert spark.ask("store_available", options=options, **stored) > 1
        assert sorted(values(spark.ask("stored", folder=stored["folder"]))) == sorted(expected)


def test_a_stream_that_runs_takes_up_new_segments(
    spark: RunningSpark, tidewire: RunningBroker, name: str, writer: ScalableWriter, admin: Admin, tmp_path: Path
) -> None:
    """K35, K41: Spark finds partitions by itself before each micro-batch. It begins new ones at their first record."""
    topic = f"topic://public/default/{name}"
    options = source(str(tidewire.kafka), name, startingOffsets="latest", failOnDataLoss="true")
    stored = {"checkpoint": str(tmp_path / "checkpoint"), "folder": str(tmp_path / "rows")}
    write(writer, "before")
    spark.ask("start_storing", options=options, **stored)
    spark.ask("process_all", checkpoint=stored["checkpoint"])
    expected = write(writer, "first")
    txn = writer.begin()
    for key in range(12):
        writer.send(b"across", key=f"key {key}", txn=txn)
    admin.split_now(topic, 0)
    expected += write(writer, "second")
    spark.ask("process_all", checkpoint=stored["checkpoint"])
    rows = spark.ask("stored", folder=stored["folder"])
    # The open transaction holds back what is behind it in its segment alone.
    assert {2, 3} <= partitions(rows)
    assert {*values(rows)} < {*expected}
    admin.merge_now(topic, 2, 3)
    writer.commit(txn)
    expected += [*["across"] * 12, *write(writer, "third")]
    spark.ask("process_all", checkpoint=stored["checkpoint"])
    rows = spark.ask("stored", folder=stored["folder"])
    assert sorted(values(rows)) == sorted(expected)
    assert partitions(rows) == {0, 1, 2, 3, 4}
    spark.ask("stop", checkpoint=stored["checkpoint"])
