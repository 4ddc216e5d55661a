"""What brokers remember of a job, without Spark: what is planned, after any earlier event."""

import json
import selectors
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from typing import Final
from urllib.parse import quote
from urllib.request import Request, urlopen

import pytest
import trio

import tidewire
from tests.support.processes import RunningBroker, running_broker
from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import ProtocolViolation
from tidewire.protocol.layout import Segment
from tidewire.protocol.positions import EARLIEST, LATEST, EntryPosition
from tidewire.protocol.refusals import Refused
from tidewire.spark.brokers import Brokers
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.errors import DataLost, SubscriptionTaken
from tidewire.spark.job_progress import Batch, JobProgress, SegmentRange
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.persisting import persistently
from tidewire.spark.schema import SCHEMA
from tidewire.spark.sink import TidewireWriter
from tidewire.spark.write_options import WriteOptions
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

NUMBERS: Final = count()
PUSH_SECONDS_MAX: Final = 60.0
"""A broker has pushed what there is to read by then, even on a busy machine."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """Run a broker that removes segments as soon as they are read."""
    folder = tmp_path_factory.mktemp("broker") / "data"
    with running_broker(folder, "--segment-retention-seconds", "0") as broker:
        yield broker


@pytest.fixture
def job(broker: RunningBroker) -> "Job":
    job = Job(broker, f"topic://public/default/job{next(NUMBERS)}")
    job.administer("PUT", "?numInitialSegments=1")
    return job


class Job:
    """A topic and its reader."""

    def __init__(self, broker: RunningBroker, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self.name = f"job of {topic.rpartition('/')[2]}"
        self.sink = WriteOptions.parse({"service_url": broker.service_url}, Use.BATCH)

    def administer(self, method: str, path: str) -> None:
        with urlopen(Request(self._url + path, method=method), timeout=120):
            pass

    @property
    def _url(self) -> str:
        return f"{self.broker.http_url}/admin/v2/scalable/{self.topic.removeprefix('topic://')}"

    def send(self, *texts: bytes) -> None:
        """Send one entry each."""

        async def run() -> None:
            with trio.fail_after(120):
                connected = tidewire.connect(self.broker.service_url)
                async with connected as client, client.producer(self.topic, batching=False) as producer:
                    for text in texts:
                        await producer.send(text, key="k")

        trio.run(run)

    def until_removed(self, segment: str) -> None:
        """Wait until a segment has left the layout."""
        prefix = quote(f"/topics/{self.topic.removeprefix('topic://')}", safe="")
        # The broker pushes every change; the time-out is for one that removes nothing.
        with urlopen(f"{self.broker.http_url}/admin/v2/metadata/watch?prefix={prefix}", timeout=60) as lines:
            for _ in lines:
                with urlopen(f"{self._url}/stats", timeout=120) as answer:
                    if segment not in answer.read().decode():
                        return
        raise AssertionError("the broker has ended the watch")

    def progress(self, start: EntryPosition = EARLIEST, **options: str) -> JobProgress:
        given = {"service_url": self.broker.service_url, "topic": self.topic, **options}
        return JobProgress(self.name, ReadOptions.parse(given, Use.STREAM), self.sink, start)

    def commit(self, batch: Batch, transaction: TransactionId) -> None:
        with Brokers(self.sink) as brokers:
            Coordinator(brokers).commit_group(batch.group.on_the_wire, [transaction])


def begun(progress: JobProgress) -> tuple[Batch, TransactionId]:
    """Begin a batch. Brokers push what there is to read a moment after the sender has its answer."""
    while (found := progress.begin()) is None:
        if not progress.arrived():
            with selectors.DefaultSelector() as selector:
                for connection in progress.connections:
                    selector.register(connection, selectors.EVENT_READ)
                assert selector.select(PUSH_SECONDS_MAX), "there is nothing to read"
    return found


def lengths(batch: Batch) -> dict[str, int]:
    """Return how many entries of each segment are read."""
    return {
        segment_range.part.name or "": segment_range.upto.entry - segment_range.after.entry
        for segment_range in batch.ranges
    }


def test_batches_follow_each_other_to_the_end(job: Job) -> None:
    """T22, D17: any driver may plan them; committed entries are skipped, and no other state is kept."""
    job.send(b"a", b"b", b"c")
    with closing(job.progress(max_rows_per_trigger="2")) as progress:
        first, transaction = begun(progress)
        assert (first.number, lengths(first)) == (0, {"0000-ffff-0": 2})
        job.commit(first, transaction)
        progress.committed(first)
        second, transaction = begun(progress)
        assert (second.number, lengths(second)) == (1, {"0000-ffff-0": 1})
        assert second.ranges[0].after == first.ranges[0].upto
        job.commit(second, transaction)
        # Not `committed`: that the answer came is no matter.
    with closing(job.progress()) as progress:
        assert progress.begin() is None
        job.send(b"d")
        third, _ = begun(progress)
        assert (third.number, lengths(third)) == (2, {"0000-ffff-0": 1})


def test_the_sinks_commit_is_the_acknowledgements_too(job: Job) -> None:
    """T22, D17: there is one decision, and repeating it, as Spark does, has the same result."""
    job.send(b"a")
    with closing(job.progress()) as progress:
        batch, transaction = begun(progress)
        given = {
            "service_url": job.broker.service_url,
            "topic": job.topic,
            "txn_app_id": batch.application,
            "txn_version": str(batch.number),
            "also_commit": "{}:{}".format(*transaction),
        }
        writer = TidewireWriter(WriteOptions.parse(given, Use.BATCH), SCHEMA)
        for _ in range(2):
            writer.commit([])
    with closing(job.progress()) as progress:
        assert progress.begin() is None, "whatever the first driver made of the answer"


def test_what_an_earlier_driver_left_open_is_aborted_first(job: Job) -> None:
    """T25, D17: the next driver plans the same batch, and the earlier one's cannot be committed any more."""
    job.send(b"a", b"b")
    with closing(job.progress()) as dead:
        left, left_open = begun(dead)
    with closing(job.progress()) as progress:
        batch, transaction = begun(progress)
        assert batch == left
        with pytest.raises(Refused, match="InvalidTxnStatus"):
            job.commit(left, left_open)
        job.commit(batch, transaction)
        progress.committed(batch)
        assert progress.begin() is None


def test_one_driver_at_a_time_has_the_job(job: Job) -> None:
    """A refused driver has changed nothing."""
    job.send(b"a")
    with closing(job.progress()) as holder:
        batch, transaction = begun(holder)
        with closing(job.progress()) as other, pytest.raises(SubscriptionTaken, match="another driver may run the job"):
            other.begin()
        job.commit(batch, transaction)
        holder.committed(batch)
        assert holder.begin() is None


def test_a_batch_that_fails_is_planned_again(job: Job) -> None:
    job.send(b"a")
    with closing(job.progress()) as progress:
        failed, _ = begun(progress)
        progress.give_up(failed)
        batch, transaction = begun(progress)
        assert batch == failed
        job.commit(batch, transaction)


def test_a_batch_that_could_not_even_be_given_up_is_planned_again(job: Job) -> None:
    """Its open transactions are aborted before the next try, which acknowledges the same."""
    job.send(b"a")
    with closing(job.progress()) as progress:
        failed, _ = begun(progress)
        batch, transaction = begun(progress)
        assert batch == failed
        job.commit(batch, transaction)
        progress.committed(batch)
        assert progress.begin() is None


def test_segments_come_before_those_that_came_of_them(job: Job) -> None:
    """T20: children are in a batch after the one with their parent's end; then the parent is finished."""
    job.send(b"a", b"b")
    job.administer("POST", "/split/0")
    job.send(b"c")
    with closing(job.progress()) as progress:
        parent, transaction = begun(progress)
        assert lengths(parent) == {"0000-ffff-0": 2}
        job.commit(parent, transaction)
        progress.committed(parent)
        child, transaction = begun(progress)
        ((name, entries),) = lengths(child).items()
        assert (name in ("0000-7fff-1", "8000-ffff-2"), entries) == (True, 1)
        job.commit(child, transaction)
        progress.committed(child)
        assert progress.begin() is None


def test_a_segment_that_is_removed_once_it_is_read_is_not_missed(job: Job) -> None:
    """D16: a segment is removed when every subscription has drained it; this one skips over its end."""
    job.send(b"a")
    job.administer("POST", "/split/0")
    with closing(job.progress()) as progress:
        batch, transaction = begun(progress)
        job.commit(batch, transaction)
        progress.committed(batch)
        assert progress.begin() is None
        job.until_removed("0000-ffff-0")
        job.send(b"b")
        batch, transaction = begun(progress)
        assert set(lengths(batch)) < {"0000-7fff-1", "8000-ffff-2"}
        job.commit(batch, transaction)
        progress.committed(batch)
        assert progress.begin() is None


def test_a_decision_without_the_acknowledgement_is_found_out(job: Job) -> None:
    """Otherwise the same rows would be read and written forever."""
    job.send(b"a")
    with closing(job.progress()) as progress:
        batch, _ = begun(progress)
        with Brokers(job.sink) as brokers:
            Coordinator(brokers).commit_group(batch.group.on_the_wire, [])
        progress.committed(batch)
        with pytest.raises(ProtocolViolation, match=r"the last commit of job .* is not acknowledged"):
            progress.begin()


def test_who_stops_at_the_present_does_not_see_what_comes(job: Job) -> None:
    """This covers later messages and new segments; a job that starts later reads them."""
    job.send(b"a")
    with closing(job.progress()) as progress:
        progress.stop_at_present()
        job.send(b"b")
        job.administer("POST", "/split/0")
        job.send(b"c")
        batch, transaction = begun(progress)
        assert lengths(batch) == {"0000-ffff-0": 1}
        job.commit(batch, transaction)
        progress.committed(batch)
        assert progress.begin() is None
    with closing(job.progress()) as progress:
        batch, _ = begun(progress)
        assert lengths(batch) == {"0000-ffff-0": 1}


def test_a_new_job_may_begin_behind_all_that_there_is(job: Job) -> None:
    """They may be sealed, empty or neither; the job also gets messages that arrive while it does not run."""
    job.send(b"a")
    job.administer("POST", "/split/0")
    job.administer("POST", "/split/1")
    job.send(b"b")
    with closing(job.progress(LATEST)) as progress:
        assert progress.begin() is None
    job.send(b"c")
    with closing(job.progress(LATEST)) as progress:
        batch, _ = begun(progress)
        assert [*lengths(batch).values()] == [1]


def test_a_topic_that_comes_later_is_read_from_its_beginning(job: Job) -> None:
    """D17: the job ran before, so its configured start no longer counts, even if no batch had rows."""
    matching = {"topic": "", "topic_pattern": f"{job.topic}(-.*)?"}
    job.send(b"a")
    with closing(job.progress(LATEST, **matching)) as progress:
        assert progress.begin() is None
    later = Job(job.broker, f"{job.topic}-later")
    later.administer("PUT", "?numInitialSegments=1")
    later.send(b"b", b"c")
    job.send(b"d")
    with closing(job.progress(LATEST, **matching)) as progress:
        batch, _ = begun(progress)
    entries = {
        segment_range.part.topic: segment_range.upto.entry - segment_range.after.entry for segment_range in batch.ranges
    }
    assert entries == {job.topic: 1, later.topic: 2}


def test_a_subscription_that_is_moved_while_a_batch_is_planned_moves_the_job(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan made before the move acknowledges nothing."""
    job.send(b"a", b"b")
    with closing(job.progress()) as progress:
        batch, transaction = begun(progress)
        job.commit(batch, transaction)
        progress.committed(batch)
        job.send(b"c")
        begin = Coordinator.new_transaction

        def move_before(self: Coordinator, group: pb.TransactionGroup, timeout_ms: int) -> TransactionId | None:
            monkeypatch.undo()
            job.administer("POST", f"/subscriptions/{quote(job.name)}/seek?timestamp=0")
            return begin(self, group, timeout_ms)

        monkeypatch.setattr(Coordinator, "new_transaction", move_before)
        found = persistently(progress.begin, 30)
        assert found is not None
        assert lengths(found[0]) == {"0000-ffff-0": 3}


def test_a_broker_that_restarts_is_asked_again(job: Job) -> None:
    """T25, D8: the progress is durable."""
    job.send(b"a", b"b")
    with closing(job.progress(max_rows_per_trigger="1")) as progress:
        batch, transaction = begun(progress)
        job.commit(batch, transaction)
        progress.committed(batch)
        job.broker.kill()
        job.broker.restart()
        progress.reset()
        following, _ = begun(progress)
        assert (following.number, lengths(following)) == (1, {"0000-ffff-0": 1})


def test_a_topic_that_is_not_there_is_named(job: Job) -> None:
    with (
        closing(job.progress(topic=f"{job.topic}-none")) as progress,
        pytest.raises(DataLost, match=r"there is no topic .* makes it"),
    ):
        progress.begin()


def test_a_batch_says_spark_what_to_read_and_nothing_else_of_its_topics() -> None:
    def part(topic: str, name: str) -> Segment:
        return Segment(topic, name, f"segment://{topic}/{name}")

    batch = Batch(
        "a",
        3,
        (
            SegmentRange(part("topic://a/b/x", "0000-7fff-0"), EntryPosition(5, 1), EntryPosition(5, 4)),
            SegmentRange(part("topic://a/b/x", "8000-ffff-1"), EARLIEST, EntryPosition(6, 0)),
            SegmentRange(part("topic://a/b/w", "0000-ffff-0"), EARLIEST, EntryPosition(7, 0)),
        ),
    )
    assert batch.topics == "topic://a/b/w,topic://a/b/x"
    assert json.loads(batch.starting_position) == {
        "topic://a/b/x": {"*": "latest", "0000-7fff-0": "5:1", "8000-ffff-1": "-1:-1"},
        "topic://a/b/w": {"*": "latest", "0000-ffff-0": "-1:-1"},
    }
    assert json.loads(batch.ending_position) == {
        "topic://a/b/x": {"0000-7fff-0": "5:4", "8000-ffff-1": "6:0"},
        "topic://a/b/w": {"0000-ffff-0": "7:0"},
    }
