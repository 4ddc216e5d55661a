"""A Spark stream reads and writes topics of a cluster while segments move, split and merge, and their owner dies."""

from pathlib import Path
from typing import Final

import pytest
import trio
from pyspark.sql import SparkSession

import tidewire
from broker.names import TopicName
from tests.interop.test_java_v5_cluster import SETTINGS, ask, die, move
from tests.support.admin import Admin
from tests.support.real_cluster import EMBEDDED, running_cluster

SECONDS_MAX: Final = 180
pytestmark = [pytest.mark.interop, pytest.mark.timeout(SECONDS_MAX + 60)]

SOURCE: Final = "topic://public/default/source"
TARGET: Final = "topic://public/default/target"
KEYS: Final = 20
STEP: Final = 60
"""Messages sent after each change."""


async def test_a_stream_follows_its_topics_through_the_cluster(spark: SparkSession, tmp_path: Path) -> None:
    """C14, C21, E17: every message once, in order per key, and no failed query."""
    with trio.fail_after(SECONDS_MAX):
        async with running_cluster(tmp_path, *EMBEDDED, settings=SETTINGS) as cluster:
            url, admin = cluster.url(), Admin(cluster.any.http_url)
            for topic, segments in ((SOURCE, 4), (TARGET, 2)):
                await trio.to_thread.run_sync(admin.create, topic, segments)
            given = {"service_url": url, "topic": SOURCE, "starting_position": "earliest"}
            rows = spark.readStream.format("tidewire").options(**given).load().selectExpr("key", "value")
            writer = rows.writeStream.format("tidewire").options(service_url=url, topic=TARGET)
            # Spark finds its session only in this thread. The brokers are processes of their own, so they go on.
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
            async with (
                tidewire.connect(url) as client,
                client.producer(SOURCE) as producer,
                client.reader(TARGET) as reader,
            ):
                sent = 0

                async def more() -> None:
                    """Send further messages, and check that they come out."""
                    nonlocal sent
                    wanted: dict[str, list[int]] = {}
                    for number in range(sent, sent + STEP):
                        key = f"k{number % KEYS}"
                        await producer.send(b"%d" % number, key=key)
                        wanted.setdefault(key, []).append(number)
                    sent += STEP
                    found: dict[str, list[int]] = {}
                    for _ in range(STEP):
                        message = await reader.receive()
                        found.setdefault(str(message.key), []).append(int(message.value))
                    assert found == wanted

                await more()
                await move(cluster, TopicName.parse(SOURCE))
                await move(cluster, TopicName.parse(TARGET))
                await more()
                await ask(cluster, "POST", "/unload", {"topic": SOURCE})
                await more()
                await admin.split(SOURCE, 0)
                await admin.merge(SOURCE, 1, 2)
                await more()
                owned = await cluster.owned()
                await die(cluster, max(owned, key=owned.__getitem__))
                await more()
                assert query.exception() is None
                # A message that came twice would come before this one.
                await producer.send(b"-1", key="last")
                assert (await reader.receive()).value == b"-1"
            query.stop()
