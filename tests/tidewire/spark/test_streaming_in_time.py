"""A replay in Spark, of a topic that was split and merged, with an event-time watermark."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import tidewire
from tests.support.admin import Admin
from tests.support.processes import RunningBroker
from tests.tidewire.spark.test_end_to_end import write

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

MINUTE_MS = 60_000
START_MS = 1_700_000_000_000
STAGE = 120
"""Messages between two changes of the topic, a minute apart by their event times."""
CHANGES = (0,), (2,), (5, 3), (6,), (4, 7)
"""One segment is split, two are merged. Segment 1 stays as it is, so in a replay it could run ahead by all stages."""


def send_stage(broker: RunningBroker, topic: str, stage: int) -> None:
    async def story(client: tidewire.Client) -> None:
        async with client.producer(topic) as producer:
            for number in range(stage * STAGE, (stage + 1) * STAGE):
                time_ms = START_MS + number * MINUTE_MS
                await producer.enqueue(b"%05d" % number, key=f"k{number % 40}", event_time_ms=time_ms)

    write(broker, story)


@pytest.mark.parametrize("limit", [None, 100])
def test_a_replay_loses_nothing_to_a_watermark_that_is_right_live(
    spark: SparkSession, broker: RunningBroker, topic: str, tmp_path: Path, limit: int | None
) -> None:
    """E23: through splits and merges, with micro-batches of everything, and with limited ones."""
    admin = Admin(broker.http_url)
    send_stage(broker, topic, 0)
    for stage, segments in enumerate(CHANGES, 1):
        if len(segments) == 1:
            admin.split_now(topic, *segments)
        else:
            admin.merge_now(topic, *segments)
        send_stage(broker, topic, stage)
    options = {"service_url": broker.service_url, "topic": topic, "starting_position": "earliest"}
    if limit is not None:
        options["max_rows_per_trigger"] = str(limit)
    found: list[bytes] = []

    def keep(frame: DataFrame, _epoch: int) -> None:
        found.extend(bytes(row.value) for row in frame.collect())

    rows = spark.readStream.format("tidewire").options(**options).load()
    # What was sent within a stage may come in any order; what is two stages old is late.
    kept = rows.withWatermark("event_time", f"{STAGE * 3 // 2} minutes").dropDuplicates(["value", "event_time"])
    writer = kept.writeStream.foreachBatch(keep).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    dropped = sum(
        operator["numRowsDroppedByWatermark"] for one in query.recentProgress for operator in one["stateOperators"]
    )
    assert dropped == 0
    assert sorted(found) == [b"%05d" % number for number in range(STAGE * (len(CHANGES) + 1))]
    assert max(one["numInputRows"] for one in query.recentProgress) <= (limit or 2 * STAGE)
