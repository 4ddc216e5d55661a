"""A task's rows reach a broker in a separate process, while topics change."""

from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from itertools import count
from typing import Any, Final

import pyarrow as pa
import pytest

from tests.support.admin import Admin
from tests.support.processes import RunningBroker
from tidewire.protocol.errors import ConnectionLost
from tidewire.protocol.refusals import Refused
from tidewire.spark import batching, writing
from tidewire.spark.brokers import Brokers
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.encoding import Columns, encode
from tidewire.spark.errors import WriteFailed
from tidewire.spark.options import ReadOptions, Use
from tidewire.spark.reader import TidewireReader
from tidewire.spark.write_options import WriteOptions
from tidewire.spark.writing import Attempt
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

NUMBERS = count()
KEYS = 50
TURN_SECONDS: Final = 0.01
"""Between two writes of a task that takes no answers, so that these fit into its socket's buffer."""


class Task:
    """An attempt with its own transaction, and what it has written."""

    def __init__(self, brokers: Brokers, group: pb.TransactionGroup, declared: pb.Schema | None = None) -> None:
        self.coordinator = Coordinator(brokers)
        transaction = self.coordinator.new_transaction(group, 600_000)
        assert transaction is not None
        self.transaction = transaction
        self.group = group
        self.attempt = Attempt(brokers, self.coordinator, transaction, declared)

    def write(self, topic: str, numbers: range) -> None:
        self.attempt.write(
            topic,
            encode(
                Columns(
                    pa.array([b"%06d" % number for number in numbers]),
                    pa.array([f"k{number % KEYS}" for number in numbers]),
                )
            ),
        )

    def commit(self) -> None:
        self.attempt.finish()
        self.coordinator.commit_group(self.group, [self.transaction])


@contextmanager
def task(broker: RunningBroker, declared: pb.Schema | None = None) -> Iterator[Task]:
    group = pb.TransactionGroup(application=f"a{next(NUMBERS)}", batch=0)
    options = WriteOptions.parse({"service_url": broker.service_url}, Use.BATCH)
    with Brokers(options) as brokers:
        yield Task(brokers, group, declared)


def stored(broker: RunningBroker, topic: str, **options: str) -> dict[tuple[str, str], list[int]]:
    """Return the topic's content by segment and key, in the order of positions."""
    reader = TidewireReader(ReadOptions.parse({"service_url": broker.service_url, "topic": topic, **options}))
    found = defaultdict(list)
    for partition in reader.partitions():
        for batch in reader.read(partition):
            columns = [batch.column(name).to_pylist() for name in ("segment", "key", "value")]
            for segment, key, value in zip(*columns, strict=True):
                found[segment, key].append(int(value))
    return dict(found)


def assert_complete_and_in_order(broker: RunningBroker, topic: str, numbers: range) -> None:
    """Check that every number is there once, and a key's in order: within a segment, and from parents to children."""
    by_key: dict[str, list[int]] = defaultdict(list)
    found = stored(broker, topic)
    # A child has a higher number than its parents, and of each key one segment is active at a time.
    for segment, key in sorted(found, key=lambda one: int(one[0].rpartition("-")[2])):
        by_key[key] += found[segment, key]
    assert {key: by_key[key] for key in sorted(by_key)} == {
        f"k{key}": [number for number in numbers if number % KEYS == key]
        for key in sorted(range(KEYS), key=lambda key: f"k{key}")
    }


def test_rows_are_stored_in_order_and_read_when_committed(broker: RunningBroker, topic: str) -> None:
    """T14: rows of an open transaction are not read, those of a committed one all are."""
    with task(broker) as one:
        one.write(topic, range(3000))
        one.write(topic, range(3000, 10_000))
        one.attempt.finish()
        assert stored(broker, topic) == {}
        one.commit()
    assert_complete_and_in_order(broker, topic, range(10_000))


def test_rows_of_an_aborted_task_are_never_read(broker: RunningBroker, topic: str) -> None:
    """T17: nothing of an aborted transaction is read."""
    with task(broker) as loser, task(broker) as winner:
        loser.write(topic, range(1000, 2000))
        winner.write(topic, range(1000))
        loser.attempt.finish()
        loser.coordinator.abort(loser.transaction)
        winner.commit()
    assert_complete_and_in_order(broker, topic, range(1000))


@pytest.mark.parametrize("frame_rows_max", [1, 100])
def test_splits_and_merges_while_rows_are_written_lose_double_and_reorder_nothing(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch, frame_rows_max: int
) -> None:
    """T20: a key's rows go to the segment that takes it at that time, in order."""
    monkeypatch.setattr(batching, "FRAME_ROWS_MAX", frame_rows_max)

    def change() -> None:
        Admin(broker.http_url).split_now(topic, 0)
        Admin(broker.http_url).split_now(topic, 1)
        Admin(broker.http_url).merge_now(topic, 2, 3)
        Admin(broker.http_url).split_now(topic, 4)
        Admin(broker.http_url).merge_now(topic, 5, 8)

    written = 0
    with task(broker) as one, ThreadPoolExecutor(1) as threads:
        one.write(topic, range(KEYS))
        written += KEYS
        changing = threads.submit(change)
        while not changing.done():
            one.write(topic, range(written, written + KEYS))
            written += KEYS
        changing.result()
        one.write(topic, range(written, written + KEYS))
        written += KEYS
        one.commit()
    assert_complete_and_in_order(broker, topic, range(written))


@pytest.mark.interop
def test_what_a_sealed_segment_did_not_take_goes_to_its_children(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T20: the task ignores layout changes here, so it continues to send to a sealed segment."""
    monkeypatch.setattr(batching, "FRAME_ROWS_MAX", 10)
    monkeypatch.setattr(writing, "WINDOW_FRAMES_MAX", 1_000_000)
    monkeypatch.setattr(writing, "WINDOW_BYTES_MAX", 1 << 40)
    hear, settle = Attempt._hear_what_is_there, Attempt._settle_topic
    left: list[int] = []
    with task(broker) as one, ThreadPoolExecutor(1) as threads:
        one.write(topic, range(1000))
        changing = threads.submit(Admin(broker.http_url).split_now, topic, 0)

        def hear_at_the_end(self: Attempt) -> None:
            if is_written:
                hear(self)

        def note_what_is_left(self: Attempt, target: Any) -> None:
            before = self.frames_unanswered
            settle(self, target)
            left.append(before - self.frames_unanswered)

        monkeypatch.setattr(Attempt, "_hear_what_is_there", hear_at_the_end)
        monkeypatch.setattr(Attempt, "_settle_topic", note_what_is_left)
        is_written = False
        written = 1000
        while not is_written:
            # The last turn begins after the segment was sealed.
            is_sealed = bool(wait([changing], TURN_SECONDS).done)
            one.write(topic, range(written, written + 100))
            written += 100
            is_written = is_sealed
        changing.result()
        one.commit()
    assert max(left) > 0
    assert_complete_and_in_order(broker, topic, range(written))


@pytest.mark.interop
@pytest.mark.parametrize("is_known", [False, True])
def test_what_arrives_after_its_producer_was_closed_goes_to_the_children(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """T20: the broker seals the segment and closes the producer, and the task has heard of neither."""
    hear = Attempt._hear_what_is_there
    with task(broker) as one:
        one.write(topic, range(1000))
        if is_known:
            one.attempt.finish()
        else:
            for target, segment in [*one.attempt._all_segments()]:
                one.attempt._open_producer(target, segment)
        Admin(broker.http_url).split_now(topic, 0)
        monkeypatch.setattr(Attempt, "_hear_what_is_there", lambda self: None)
        one.write(topic, range(1000, 50_000))
        assert one.attempt.frames_unanswered > 0
        monkeypatch.setattr(Attempt, "_hear_what_is_there", hear)
        one.commit()
    assert_complete_and_in_order(broker, topic, range(50_000))


def test_a_window_full_of_frames_waits_for_answers(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "FRAME_ROWS_MAX", 10)
    monkeypatch.setattr(writing, "WINDOW_FRAMES_MAX", 3)
    with task(broker) as one:
        one.write(topic, range(2000))
        assert one.attempt.frames_unanswered <= 3
        one.commit()
    assert_complete_and_in_order(broker, topic, range(2000))


def test_rows_that_wait_for_too_many_segments_are_sent_early(
    broker: RunningBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "WAITING_BYTES_MAX", 1000)
    with task(broker) as one:
        one.write(topic, range(500))
        one.attempt.finish()
        assert sum(map(len, stored(broker, topic, isolation="read_uncommitted").values())) == 500


def test_rows_without_keys_take_turns(broker: RunningBroker, topic: str) -> None:
    rows = encode(Columns(pa.array([b"%d" % number for number in range(5000)])))
    with task(broker) as one:
        one.attempt.write(topic, rows)
        one.commit()
    found = stored(broker, topic)
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(5000))
    assert all(len(numbers) >= 2000 for numbers in found.values())
    assert len(found) == 2


def test_one_task_writes_to_several_topics(broker: RunningBroker, topic: str) -> None:
    Admin(broker.http_url).create(f"{topic}-other")
    with task(broker) as one:
        one.write(topic, range(100))
        one.write(f"{topic}-other", range(100))
        one.commit()
    assert_complete_and_in_order(broker, topic, range(100))
    assert_complete_and_in_order(broker, f"{topic}-other", range(100))


def test_a_topic_that_does_not_exist_is_refused_by_name(broker: RunningBroker) -> None:
    with task(broker) as one, pytest.raises(Refused, match=r"^there is no topic topic://public/default/none at "):
        one.write("topic://public/default/none", range(1))


@pytest.mark.parametrize(
    ("is_made_again", "error", "sentence"),
    [
        (False, Refused, "there is no topic {}"),
        (True, WriteFailed, "{} was deleted and created again while a task wrote to it"),
    ],
)
def test_a_topic_that_is_deleted_under_a_task_is_told(
    broker: RunningBroker, topic: str, is_made_again: bool, error: type[Exception], sentence: str
) -> None:
    """D17: otherwise a committed batch would lack some rows."""
    admin = Admin(broker.http_url)
    with task(broker) as one:
        one.write(topic, range(100))
        one.attempt.finish()
        admin.delete(topic)
        if is_made_again:
            admin.create(topic, 2)

        def go_on() -> None:
            one.write(topic, range(100, 200))
            one.attempt.finish()

        with pytest.raises(error, match=sentence.format(topic)):
            go_on()


def test_a_schema_that_does_not_go_with_the_topics_is_refused_in_the_brokers_words(
    broker: RunningBroker, topic: str
) -> None:
    string = pb.Schema(name="String", schema_data=b"", type=pb.Schema.String)
    number = pb.Schema(name="INT32", schema_data=b"", type=pb.Schema.Int32)
    with task(broker, string) as one:
        one.write(topic, range(1))
        one.commit()
    with task(broker, number) as one:
        one.write(topic, range(1))
        with pytest.raises(Refused, match=r"\[IncompatibleSchema\]"):
            one.attempt.finish()


def test_a_transaction_that_has_ended_takes_no_more_rows(broker: RunningBroker, topic: str) -> None:
    with task(broker) as one:
        one.coordinator.abort(one.transaction)
        one.write(topic, range(1))
        with pytest.raises(Refused, match=r"segment://.* refuses a task's rows: .*\[NotAllowedError\]"):
            one.attempt.finish()


def test_a_task_whose_broker_dies_has_failed(broker: RunningBroker, topic: str) -> None:
    with task(broker) as one:
        one.write(topic, range(10_000))
        broker.kill()
        with pytest.raises(ConnectionLost):
            one.attempt.finish()
    broker.restart()
    assert stored(broker, topic) == {}
