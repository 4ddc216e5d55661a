"""Streams from a broker in a separate process into Spark, while topics change."""

import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import tidewire
from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.spark.test_end_to_end import write
from tidewire.spark.streaming import lag_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

ROWS_SECONDS_MAX: Final = 120.0
"""A running query has its rows by then, even on a busy machine."""


class Collected:
    """A query that keeps its rows, each with its micro-batch."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, folder: Path, topic: str, **options: object) -> None:
        self.rows: list[tuple[int, str, bytes, str]] = []
        """Micro-batch, key, value, segment."""
        self._grown = threading.Condition()
        self._checkpoint = str(folder / "checkpoint")
        given = {"service_url": broker.service_url, "topic": topic, "starting_position": "earliest", **options}
        self._frame = spark.readStream.format("tidewire").options(**given).load()  # type: ignore[arg-type]
        self.query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        def keep(frame: DataFrame, epoch: int) -> None:
            for row in frame.select("key", "value", "segment").collect():
                self.rows.append((epoch, row.key, bytes(row.value), row.segment))
            with self._grown:
                self._grown.notify_all()

        writer = self._frame.writeStream.foreachBatch(keep).option("checkpointLocation", self._checkpoint)
        self.query = writer.trigger(**trigger).start() if trigger else writer.start()
        return self.query

    def run_out(self) -> list[bytes]:
        """Read what there is, and stop; return all values so far."""
        query = self.start(availableNow=True)
        assert query.awaitTermination(120)
        return self.values

    def until(self, count: int) -> None:
        """Wait until the running query has so many rows, and until it finds no more.

        Brokers push to the query what there is to read, a moment after the sender has its answer. Until the push comes
        `processAllAvailable` finds nothing, and returns.
        """
        assert self.query is not None, "it was never started"
        with self._grown:
            has_grown = self._grown.wait_for(lambda: len(self.rows) >= count, ROWS_SECONDS_MAX)
        assert has_grown, f"{len(self.rows)} of {count} rows came; the query's error: {self.query.exception()}"
        self.query.processAllAvailable()

    @property
    def values(self) -> list[bytes]:
        return sorted(value for _, _, value, _ in self.rows)

    @property
    def batches(self) -> dict[int, int]:
        """Return the rows of each micro-batch that had some."""
        sizes: dict[int, int] = defaultdict(int)
        for epoch, *_ in self.rows:
            sizes[epoch] += 1
        return sizes


Story = Callable[[tidewire.Client], Any]


def sending(topic: str, values: range, keys: int = 20) -> Story:
    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic) as producer:
            for number in values:
                await producer.enqueue(b"%05d" % number, key=f"k{number % keys}")

    return story


def expected(numbers: range) -> list[bytes]:
    return [b"%05d" % number for number in numbers]


def assert_keys_in_order(rows: list[tuple[int, str, bytes, str]]) -> None:
    """Check that a key's micro-batches are in order, and that a micro-batch has each key in one segment."""
    for key in {key for _, key, _, _ in rows}:
        by_value = [epoch for _, epoch in sorted((value, epoch) for epoch, k, value, _ in rows if k == key)]
        assert by_value == sorted(by_value)
    segments = defaultdict(set)
    for epoch, key, _, segment in rows:
        segments[epoch, key].add(segment)
    assert {len(one) for one in segments.values()} <= {1}


def test_a_split_and_a_merge_in_the_middle_lose_double_and_reorder_nothing(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """T20: this happens while the query runs; it is stopped when it has everything."""
    collected = Collected(spark, broker, tmp_path, topic)
    write(broker, sending(topic, range(100)))
    query = collected.start()
    collected.until(100)
    Admin(broker.http_url).split_now(topic, 0)
    write(broker, sending(topic, range(100, 200)))
    collected.until(200)
    Admin(broker.http_url).merge_now(topic, 2, 3)
    write(broker, sending(topic, range(200, 300)))
    collected.until(300)
    query.stop()
    assert collected.values == expected(range(300))
    assert {row[3] for row in collected.rows} == {
        *("0000-7fff-0", "8000-ffff-1", "0000-3fff-2", "4000-7fff-3", "0000-7fff-4")
    }
    assert_keys_in_order(collected.rows)


def test_a_checkpoint_from_before_splits_goes_on_behind_them(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """T20: two splits happen while the query is down; each run stops at what existed when it began."""
    write(broker, sending(topic, range(100)))
    collected = Collected(spark, broker, tmp_path, topic)
    assert collected.run_out() == expected(range(100))
    write(broker, sending(topic, range(100, 200)))
    Admin(broker.http_url).split_now(topic, 0)
    write(broker, sending(topic, range(200, 300)))
    Admin(broker.http_url).split_now(topic, 2)
    write(broker, sending(topic, range(300, 400)))
    assert collected.run_out() == expected(range(400))
    assert_keys_in_order(collected.rows)
    assert collected.run_out() == expected(range(400))


def test_open_and_aborted_transactions_never_leak(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    """T14, T17: a split during an open transaction hides none of its committed messages."""
    collected = Collected(spark, broker, tmp_path, topic)
    query = collected.start()

    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic) as producer:
            committed, aborted, open_one = [await client.new_transaction() for _ in range(3)]
            for number in range(50):
                for label, txn in ((b"c", committed), (b"a", aborted), (b"o", open_one)):
                    await producer.enqueue(b"%s%02d" % (label, number), key=f"k{number}", txn=txn)
            await producer.flush()
            await aborted.abort()
            await committed.commit()
            await trio.to_thread.run_sync(query.processAllAvailable)
            assert not any(value.startswith((b"a", b"o")) for value in collected.values)
            await Admin(broker.http_url).split(topic, 0)
            await producer.send(b"behind", key="k0")
            await trio.to_thread.run_sync(query.processAllAvailable)
            assert not any(value.startswith((b"a", b"o")) for value in collected.values)
            await open_one.commit()

    write(broker, story)
    collected.until(101)
    query.stop()
    assert collected.values == [b"behind"] + [b"c%02d" % n for n in range(50)] + [b"o%02d" % n for n in range(50)]
    assert_keys_in_order([row for row in collected.rows if row[2].startswith(b"c")])


def test_limits_are_kept_and_the_lag_behind_them_is_reported(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic, batching=False) as producer:
            for number in range(100):
                await producer.enqueue(b"%05d" % number * 200, key=f"k{number % 20}")

    write(broker, story)
    for name, options, most in (
        ("rows", {"max_rows_per_trigger": 30}, 30),
        ("bytes", {"maxBytesPerTrigger": 40_000}, 45),
    ):
        folder = tmp_path / name
        collected = Collected(spark, broker, folder, topic, **options)
        collected.run_out()
        assert len(collected.values) == len(set(collected.values)) == 100
        assert max(collected.batches.values()) <= most
        assert len(collected.batches) >= 3
        assert collected.query is not None
        lags = [lag_of(progress["sources"][0]) for progress in collected.query.recentProgress]
        assert lags[0]["messages"] >= 100 - most
        assert lags[0]["bytes"] > 0
        assert lags[0]["seconds"] > 0
        assert lags[-1] == {"messages": 0, "bytes": 0, "seconds": 0}


def test_a_stream_begins_at_the_latest_by_default(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    write(broker, sending(topic, range(50)))
    collected = Collected(spark, broker, tmp_path, topic, starting_position="latest")
    assert collected.run_out() == []
    write(broker, sending(topic, range(50, 80)))
    assert collected.run_out() == expected(range(50, 80))


def test_a_query_goes_on_when_its_broker_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    """D8: the broker is back before the query would give up."""
    with running_broker(tmp_path / "data") as broker:
        topic = Admin(broker.http_url).new_topic(2)
        write(broker, sending(topic, range(50)))
        collected = Collected(spark, broker, tmp_path, topic)
        query = collected.start()
        collected.until(50)
        broker.kill()
        broker.restart()
        write(broker, sending(topic, range(50, 100)))
        collected.until(100)
        query.stop()
        assert collected.values == expected(range(100))


def test_others_see_the_lag_of_a_query_by_its_subscription(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    def backlog() -> int:
        count: int = Admin(broker.http_url).subscription(topic, "query")["msgBacklog"]
        return count

    write(broker, sending(topic, range(100)))
    collected = Collected(spark, broker, tmp_path, topic, subscription="query")
    collected.run_out()
    assert backlog() == 0
    Admin(broker.http_url).split_now(topic, 0)
    write(broker, sending(topic, range(100, 150)))
    assert backlog() > 0
    assert collected.run_out() == expected(range(150))
    assert backlog() == 0


def test_a_second_query_of_a_subscription_ends_and_says_why_and_the_first_goes_on(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    write(broker, sending(topic, range(10)))
    first = Collected(spark, broker, tmp_path / "1", topic, subscription="query")
    query = first.start()
    first.until(10)
    # Long enough for any answer. The query insists on the subscription for as long.
    second = Collected(spark, broker, tmp_path / "2", topic, subscription="query", operation_timeout_seconds=3)
    with pytest.raises(
        StreamingQueryException, match=r"SubscriptionTaken: subscription 'query' cannot be held; another"
    ):
        second.start().awaitTermination(120)
    write(broker, sending(topic, range(10, 20)))
    first.until(20)
    query.stop()
    assert first.values == expected(range(20))


def test_topics_that_come_later_are_read_when_their_names_match(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    write(broker, sending(topic, range(20)))
    collected = Collected(spark, broker, tmp_path, "", topic_pattern=f"{topic}(-.*)?")
    query = collected.start()
    collected.until(20)
    Admin(broker.http_url).create(f"{topic}-later")
    write(broker, sending(f"{topic}-later", range(20, 40)))
    collected.until(40)
    query.stop()
    assert collected.values == expected(range(40))


@pytest.mark.parametrize("fails", [True, False])
def test_a_topic_that_was_deleted_and_made_again_is_data_loss(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path, fails: bool
) -> None:
    write(broker, sending(topic, range(50)))
    collected = Collected(spark, broker, tmp_path, topic, fail_on_data_loss=fails)
    assert collected.run_out() == expected(range(50))
    Admin(broker.http_url).delete(topic)
    if fails:
        with pytest.raises(
            StreamingQueryException, match=f"topic {topic}, which the stream reads, was deleted; set fail"
        ):
            collected.run_out()
    Admin(broker.http_url).create(topic, 2)
    write(broker, sending(topic, range(50, 70)))
    if fails:
        with pytest.raises(
            StreamingQueryException, match=r"the topic was deleted and created again, or .*; set fail_on_data_loss"
        ):
            collected.run_out()
    else:
        assert collected.run_out() == expected(range(70))


def test_a_plain_topic_is_streamed_in_partitions_of_bounded_size(
    spark: SparkSession, broker: RunningBroker, tmp_path: Path
) -> None:
    topic = "persistent://public/default/plain"
    write(broker, sending(topic, range(25_000)))
    collected = Collected(spark, broker, tmp_path, topic, partition_bytes=65_536)
    assert collected.run_out() == expected(range(25_000))
    write(broker, sending(topic, range(25_000, 25_010)))
    assert len(collected.run_out()) == 25_010


def test_a_topic_deleted_under_a_running_query_ends_it(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path
) -> None:
    write(broker, sending(topic, range(10)))
    collected = Collected(spark, broker, tmp_path, topic)
    query = collected.start()
    collected.until(10)
    Admin(broker.http_url).delete(topic)
    with pytest.raises(StreamingQueryException, match="which the stream reads, was deleted; set fail_on_data_loss"):
        query.awaitTermination(60)
