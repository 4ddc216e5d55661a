"""Spark reads from a broker in a separate process what Tidewire's client wrote there."""

import socket
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

import tidewire
from tests.support.admin import Admin
from tests.support.processes import RunningBroker, running_broker
from tidewire.spark import TidewireSource
from tidewire.spark.options import ReadOptions
from tidewire.spark.reader import TidewireReader
from tidewire.spark.receiving import WINDOW_MESSAGES
from tidewire.spark.schema import SCHEMA

# The first test pays for Spark's start, which on a busy machine takes long.
pytestmark = pytest.mark.timeout(300)


def load(spark: SparkSession, broker: RunningBroker, topic: str, options: dict[str, str] | None = None) -> DataFrame:
    given = {"service_url": broker.service_url, "topic": topic, **(options or {})}
    return spark.read.format("tidewire").options(**given).load()


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


def write(broker: RunningBroker, story: Callable[[tidewire.Client], Awaitable[None]]) -> None:
    """Run the story with a client, with a time limit."""

    async def run() -> None:
        with trio.fail_after(60):
            async with tidewire.connect(broker.service_url) as client:
                await story(client)

    trio.run(run)


async def send_all(topic: str, texts: list[bytes], client: tidewire.Client) -> None:
    async with client.producer(topic) as producer:
        for number, text in enumerate(texts):
            await producer.enqueue(text, key=f"k{number}")


def test_every_column_is_exact(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic, batching=False) as producer:
            await producer.send(
                b"\x00\xff", key="ключ", properties={"a": "1", "b": ""}, event_time_ms=1_700_000_000_123
            )
            await producer.send(b"", key="")
        async with client.producer(topic, compression="lz4") as producer:
            # A single message would be sent without a batch.
            for number in range(2):
                await producer.enqueue(b"zipped %d" % number * 50, key="ключ")

    write(broker, story)
    frame = load(spark, broker, topic)
    assert frame.schema == SCHEMA
    exact = frame.select(
        *("key", "value", "topic", "segment", "position", "properties"),
        F.unix_micros("event_time").alias("event_us"),
        F.unix_micros("publish_time").alias("publish_us"),
    )
    rows = {bytes(row.value): row for row in exact.collect()}
    assert rows.keys() == {b"\x00\xff", b"", b"zipped 0" * 50, b"zipped 1" * 50}
    first, empty, zipped = rows[b"\x00\xff"], rows[b""], rows[b"zipped 1" * 50]
    assert (first.key, first.properties, first.event_us) == ("ключ", {"a": "1", "b": ""}, 1_700_000_000_123_000)
    assert (empty.key, empty.properties, empty.event_us) == ("", {}, None)
    assert {row.topic for row in rows.values()} == {topic}
    assert first.segment == zipped.segment
    assert first.segment in {"0000-7fff-0", "8000-ffff-1"}
    assert first.position.batch_index is None
    assert zipped.position.batch_index == 1
    assert (first.position.ledger, first.position.entry) < (zipped.position.ledger, zipped.position.entry)
    assert 0 <= zipped.publish_us - first.publish_us < 60_000_000


def test_only_what_is_committed_is_read_and_all_of_that(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    """T14, T17: rows of aborted and open transactions are not there, nor rows behind an open one."""

    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic) as producer:
            committed, aborted, open_one = [await client.new_transaction() for _ in range(3)]
            for number in range(100):
                key = f"k{number}"
                await producer.enqueue(b"committed", key=key, txn=committed)
                await producer.enqueue(b"aborted", key=key, txn=aborted)
            await producer.flush()
            for number in range(100):
                await producer.enqueue(b"open", key=f"k{number}", txn=open_one)
            await producer.flush()
            await aborted.abort()
            await committed.commit()
            await producer.send(b"behind", key="k0")
            before = await trio.to_thread.run_sync(lambda: values(load(spark, broker, topic)))
            assert before == [b"committed"] * 100
            await open_one.commit()

    write(broker, story)
    # The commit has returned, so a read planned now has all of it.
    assert values(load(spark, broker, topic)) == [b"behind"] + [b"committed"] * 100 + [b"open"] * 100


def test_a_transaction_that_lives_through_a_split_is_read_whole_or_not_at_all(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    """T20: the sealed parent and its children together have all of it, each key's messages in order."""
    keys = [f"k{number}" for number in range(50)]

    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic) as producer:
            txn = await client.new_transaction()
            for round_of in range(4):
                for key in keys:
                    await producer.enqueue(b"%d" % round_of, key=key, txn=txn)
                await producer.flush()
                if round_of == 1:
                    await Admin(broker.http_url).split(topic, 0)
            assert await trio.to_thread.run_sync(lambda: load(spark, broker, topic).count()) == 0
            await txn.commit()

    write(broker, story)
    frame = load(spark, broker, topic)
    assert frame.rdd.getNumPartitions() == 4
    ordered = frame.select("key", "value", "segment", "position.*").collect()
    ordered.sort(key=lambda row: (int(row.segment.split("-")[2]), row.ledger, row.entry, row.batch_index))
    by_key = defaultdict(list)
    for row in ordered:
        by_key[row.key].append(bytes(row.value))
    # Children have higher ids than their parents, and a key is in one segment of each generation.
    assert by_key == {key: [b"0", b"1", b"2", b"3"] for key in keys}
    assert {row.segment for row in ordered} == {"0000-7fff-0", "8000-ffff-1", "0000-3fff-2", "4000-7fff-3"}


def test_a_plain_topic_is_one_partition(spark: SparkSession, broker: RunningBroker) -> None:
    topic = "persistent://public/default/plain"
    write(broker, partial(send_all, topic, [b"a", b"b"]))
    frame = load(spark, broker, topic)
    assert values(frame) == [b"a", b"b"]
    assert [row.segment for row in frame.select("segment").distinct().collect()] == [None]
    assert frame.rdd.getNumPartitions() == 1


def test_a_topic_without_messages_has_no_rows(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    assert load(spark, broker, topic).count() == 0


def test_a_data_frame_keeps_the_rows_it_had_when_first_used_and_the_next_one_has_more(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    frame = load(spark, broker, topic)
    write(broker, partial(send_all, topic, [b"a"]))
    assert values(frame) == [b"a"]
    write(broker, partial(send_all, topic, [b"b"]))
    assert values(frame) == [b"a"]
    assert values(load(spark, broker, topic)) == [b"a", b"b"]


def test_many_rows_come_once_each(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    """There are more rows than a window of permits, a record batch and a socket's buffer hold."""
    write(broker, partial(send_all, topic, [b"%d" % number for number in range(60_000)]))
    counted = load(spark, broker, topic).agg(
        F.count("*").alias("rows"),
        F.countDistinct("segment", "position").alias("places"),
        F.sum(F.col("value").cast("string").cast("long")).alias("total"),
    )
    assert counted.collect()[0].asDict() == {"rows": 60_000, "places": 60_000, "total": sum(range(60_000))}


def test_stopping_early_costs_neither_the_job_nor_the_broker(
    spark: SparkSession, broker: RunningBroker, topic: str
) -> None:
    write(broker, partial(send_all, topic, [b"v"] * 30_000))
    assert len(load(spark, broker, topic).limit(3).collect()) == 3
    assert load(spark, broker, topic).count() == 30_000


def test_what_was_committed_is_read_after_the_broker_was_killed(spark: SparkSession, tmp_path: Path) -> None:
    """T25, D8: all of it is read, and nothing of transactions that are still open."""
    with running_broker(tmp_path / "data") as broker:
        topic = Admin(broker.http_url).new_topic(2)

        async def story(client: tidewire.Client) -> None:
            async with client.producer(topic) as producer:
                async with client.transaction() as txn:
                    for number in range(100):
                        await producer.enqueue(b"%02d" % number, key=f"k{number}", txn=txn)
                open_one = await client.new_transaction()
                await producer.send(b"open", key="k0", txn=open_one)

        write(broker, story)
        broker.kill()
        broker.restart()
        assert values(load(spark, broker, topic)) == [b"%02d" % number for number in range(100)]


def test_a_broker_killed_while_a_segment_is_read_costs_no_row_and_repeats_none(tmp_path: Path) -> None:
    with running_broker(tmp_path / "data") as broker:
        topic = Admin(broker.http_url).new_topic()
        texts = [b"%d" % number for number in range(3 * WINDOW_MESSAGES)]
        write(broker, partial(send_all, topic, texts))
        reader = TidewireReader(ReadOptions.parse({"service_url": broker.service_url, "topic": topic}))
        (partition,) = reader.partitions()
        batches = reader.read(partition)
        read = next(batches).column("value").to_pylist()
        broker.kill()
        broker.restart()
        for batch in batches:
            read += batch.column("value").to_pylist()
        assert sorted(read, key=int) == texts


def test_the_format_can_be_registered_by_hand(spark: SparkSession, broker: RunningBroker, topic: str) -> None:
    write(broker, partial(send_all, topic, [b"a"]))
    spark.dataSource.register(TidewireSource)
    assert values(load(spark, broker, topic)) == [b"a"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"topics": "x"}, "unknown option 'topics'; did you mean topic? Format tidewire knows service_url, topic"),
        ({"service_url": "localhost"}, "option service_url: 'localhost' is not a broker address"),
        ({"topic": "topic://public/default/none"}, "; `tidewire topics create topic://public/default/none` makes it"),
    ],
)
def test_mistakes_reach_the_user_as_one_sentence(
    spark: SparkSession, broker: RunningBroker, topic: str, options: dict[str, str], sentence: str
) -> None:
    with pytest.raises(AnalysisException) as caught:
        load(spark, broker, topic, options).count()
    assert sentence in str(caught.value)


def test_a_broker_that_is_not_there_reaches_the_user_as_one_sentence(
    spark: SparkSession, broker: RunningBroker
) -> None:
    # Nobody else gets a bound port, and who connects to it is refused as long as nothing listens.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address = "{}:{}".format(*bound.getsockname())
        with pytest.raises(
            AnalysisException,
            match=f"no broker can be reached at pulsar://{address}: .*refused; check option service_url",
        ):
            load(spark, broker, "topic://public/default/x", {"service_url": f"pulsar://{address}"}).count()
