"""A Spark job writes its topic's committed messages, each once, whatever is killed or removed.

scripts/spark_kills.py kills a job that was started as users start theirs. The other tests run queries in this process.
They stop and start them as a user does who finds a checkpoint old, copied or gone.
"""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import trio
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from scripts import spark_kills
from tests.support.processes import RunningBroker, running_broker
from tests.support.row_copies import Copy, judge
from tests.support.spark_job import as_messages, copied
from tests.support.spark_moments import Target
from tests.support.spark_outputs import message_copies, parquet_copies
from tests.support.spark_story import Story, read_all, told
from tests.tidewire.spark.conftest import spark as spark

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

TOPIC: Final = "topic://public/default/rows"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[RunningBroker]:
    with running_broker(tmp_path / "data") as broker:
        yield broker


async def test_kills_of_driver_executor_and_broker_lose_and_double_nothing(tmp_path: Path) -> None:
    """D8, D17, T14, T20: a small run, at moments of the protocol; scripts/spark_kills.py has more."""
    kills = {Target.DRIVER: 1, Target.EXECUTOR: 1, Target.BROKER: 2}
    report = await spark_kills.run(kills, seed=3, folder=tmp_path)
    assert report.complaints == []
    assert report.kills == {target.value: count for target, count in kills.items()}


class Job:
    """Queries of one topic, each with its folders below `folder`."""

    def __init__(self, spark: SparkSession, broker: RunningBroker, folder: Path) -> None:
        self._spark = spark
        self._service = {"service_url": broker.service_url}
        self._folder = folder

    def rows(self, **options: str) -> DataFrame:
        given = {**self._service, "topic": TOPIC, "starting_position": "earliest", **options}
        return copied(self._spark.readStream.format("tidewire").options(**given).load())

    def checkpoint(self, name: str) -> Path:
        return self._folder / f"{name}-checkpoint"

    def output(self, name: str) -> Path:
        return self._folder / name

    def forget_last_commit(self, name: str) -> None:
        """Act as if Spark had been killed between the sink's commit of a micro-batch and its own record."""
        last = max((self.checkpoint(name) / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)

    async def to_files(self, name: str, **options: str) -> None:
        """Write what can be read to files."""

        def run() -> None:
            writer = self.rows(**options).writeStream.format("parquet").option("path", str(self.output(name)))
            writer = writer.option("checkpointLocation", str(self.checkpoint(name)))
            assert writer.trigger(availableNow=True).start().awaitTermination(300)

        await trio.to_thread.run_sync(run)

    async def to_messages(self, name: str, **options: str) -> None:
        """Write what can be read to a topic of that name."""

        def run() -> None:
            # A stream is written by a session that is active in its thread, which this makes it.
            self._spark.createDataFrame([], "n int")
            writer = as_messages(self.rows()).writeStream.format("tidewire")
            writer = writer.options(**self._service, topic=topic_of(name), **options)
            writer = writer.option("checkpointLocation", str(self.checkpoint(name)))
            assert writer.trigger(availableNow=True).start().awaitTermination(300)

        await trio.to_thread.run_sync(run)


def topic_of(name: str) -> str:
    return f"topic://public/default/{name}"


async def copies_in(story: Story, name: str) -> list[Copy]:
    """Return the content of the target topic."""
    return message_copies(await read_all(story.client, story.changes, topic_of(name)))


@pytest.fixture
def job(spark: SparkSession, broker: RunningBroker, tmp_path: Path) -> Job:
    return Job(spark, broker, tmp_path)


async def test_a_checkpoint_goes_on_after_splits_and_merges(job: Job, broker: RunningBroker) -> None:
    """D17, T14, T20: this includes a death behind the sink's commit; under another name rows are written twice."""
    async with told(broker, TOPIC) as story:
        await story.create(topic_of("copies"))
        await story.goes_on()
        await job.to_files("rows")
        await job.to_messages("copies")
        job.forget_last_commit("copies")
        for _ in range(2):
            await story.is_split_and_merged()
            await story.goes_on()
        inputs = await story.ends()
        await job.to_files("rows")
        await job.to_messages("copies")
        rows, messages = parquet_copies(job.output("rows")), await copies_in(story, "copies")
        job.forget_last_commit("copies")
        await job.to_messages("copies", txn_app_id="another")
        doubled = await copies_in(story, "copies")
    assert judge(story.history, inputs, rows) == []
    assert judge(story.history, inputs, messages) == []
    assert len({copy.place.segment_id for copy in rows}) > 4
    doubles = judge(story.history, inputs, doubled)
    assert any("and again from" in text for text in doubles), doubles


async def test_the_judge_finds_a_leak_and_a_loss(job: Job, broker: RunningBroker) -> None:
    """T14, T17: a query that reads uncommitted rows, and a checkpoint that marks an unwritten batch as done."""
    async with told(broker, TOPIC) as story:
        await story.goes_on()
        await job.to_files("leaking", isolation="read_uncommitted")
        await job.to_files("first")
        shutil.copytree(job.checkpoint("first"), job.checkpoint("losing"))
        await story.goes_on()
        inputs = await story.ends()
        for name in ("leaking", "losing"):
            await job.to_files(name)
    leaks = judge(story.history, inputs, parquet_copies(job.output("leaking")))
    assert any("aborted" in text and "can be seen" in text for text in leaks), leaks
    losses = judge(story.history, inputs, parquet_copies(job.output("losing")))
    assert any("are missing" in text for text in losses), losses
    assert not any("can be seen" in text for text in losses), losses


async def test_a_query_whose_checkpoint_is_gone_repeats_or_is_refused(job: Job, broker: RunningBroker) -> None:
    """D17: it writes everything again, or its application name is refused (docs/how-to/spark-recovery.md)."""
    async with told(broker, TOPIC) as story:
        named = {"txn_app_id": "archive"}
        before: dict[str, list[Copy]] = {}
        await story.goes_on()
        for name, options in (("unnamed", {}), ("named", named)):
            await story.create(topic_of(name))
            await job.to_messages(name, **options)
            before[name] = await copies_in(story, name)
            shutil.rmtree(job.checkpoint(name))
        # Something that neither has read.
        await story.goes_on(1)
        inputs = await story.ends()
        await job.to_messages("unnamed")
        with pytest.raises(
            StreamingQueryException, match="numbering restarted, so it was neither written nor taken as written"
        ):
            await job.to_messages("named", **named)
        again, left_out = await copies_in(story, "unnamed"), await copies_in(story, "named")
    places = Counter(copy.place for copy in before["unnamed"]) + Counter(read.place for read in inputs)
    assert Counter(copy.place for copy in again) == places
    # Its only micro-batch has the number of one that was written, and other rows.
    assert 0 < len(before["named"]) < len(inputs)
    assert Counter(left_out) == Counter(before["named"])
