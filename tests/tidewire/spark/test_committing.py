"""Attempts of tasks and the decision on them, as Spark calls them, against a broker in a separate process."""

import json
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from tests.support.admin import Admin
from tests.support.blocking_peer import BlockingPeer
from tests.support.processes import RunningBroker, running_broker
from tests.tidewire.spark.test_writing import stored
from tidewire.protocol.addresses import BrokerAddress
from tidewire.protocol.coordination import TransactionId
from tidewire.protocol.errors import ConnectFailed, ConnectionLost, OperationTimedOut, ProtocolViolation
from tidewire.protocol.refusals import refusal
from tidewire.spark import committing
from tidewire.spark.brokers import Brokers
from tidewire.spark.committing import CommitGroup, abort, commit
from tidewire.spark.connection import BlockingConnection
from tidewire.spark.coordinating import Coordinator
from tidewire.spark.errors import CommitFailed, UnwritableRow
from tidewire.spark.options import Use
from tidewire.spark.sink import RowWriting, TidewireStreamWriter, TidewireWriter, Written, group_of_task
from tidewire.spark.write_options import WriteOptions
from tidewire.wire.pulsar import commands
from tidewire.wire.pulsar.frames import encode_command
from tidewire.wire.pulsar.generated import PulsarApi_pb2 as pb

NUMBERS = count()
T = pb.BaseCommand.Type
SCHEMA = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


@pytest.fixture
def options(broker: RunningBroker, topic: str) -> WriteOptions:
    return WriteOptions.parse({"service_url": broker.service_url, "topic": topic}, Use.BATCH)


@pytest.fixture
def group() -> CommitGroup:
    return CommitGroup(f"application {next(NUMBERS)}", 5)


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    """Make one record batch for each row."""
    for number in numbers:
        yield pa.RecordBatch.from_pydict({"key": [f"k{number}"], "value": [b"%d" % number]})


def attempt(options: WriteOptions, group: CommitGroup, *numbers: int) -> Written:
    return RowWriting(options, SCHEMA).write(group, rows(*numbers))


def ids(*reports: Written) -> list[TransactionId]:
    return [report.transaction for report in reports if report.transaction is not None]


def values(broker: RunningBroker, topic: str) -> list[int]:
    return sorted(number for numbers in stored(broker, topic).values() for number in numbers)


def test_only_the_attempts_that_are_named_are_read(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup
) -> None:
    """D17: a failed attempt, and a slower speculative one, leave nothing."""
    failed, winner, slower = (attempt(options, group, 1, 2) for _ in range(3))
    other = attempt(options, group, 3)
    assert values(broker, topic) == []
    assert None not in {failed.transaction, slower.transaction}
    commit(options, group, ids(winner, other))
    assert values(broker, topic) == [1, 2, 3]


def test_an_attempt_after_the_decision_takes_its_rows_and_writes_nothing(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup
) -> None:
    """D17: a late task, and a repeated batch, write nothing; a later batch does."""
    commit(options, group, ids(attempt(options, group, 1)))
    left = rows(1, 2, 3)
    late = RowWriting(options, SCHEMA).write(group, left)
    assert (late.transaction, late.is_late, late.rows.count) == (None, True, 3)
    assert list(left) == []
    commit(options, group, ids(late))
    commit(options, CommitGroup(group.application, 3), ids(attempt(options, CommitGroup(group.application, 3), 4)))
    assert values(broker, topic) == [1]
    later = CommitGroup(group.application, 6)
    commit(options, later, ids(attempt(options, later, 2)))
    assert values(broker, topic) == [1, 2]


def until_forgotten(broker: RunningBroker, transaction: TransactionId) -> None:
    """Wait until the header of an existing transaction is deleted."""
    number = transaction[1] & ((1 << 62) - 1)
    key = f"/txn/id/{transaction[0]}_{number}"
    present = False
    # The broker pushes every change; the time-out is for a broker that forgets nothing.
    with urlopen(f"{broker.http_url}/admin/v2/metadata/watch?prefix=/txn/id/", timeout=60) as lines:
        for line in lines:
            step = json.loads(line)
            if step.get("key") == key:
                present = step["event"] != "deleted"
            # First comes what is there, then a line that says so.
            if step["event"] != "present" and not present:
                return
    raise AssertionError("the watch has ended")


def test_a_batch_that_runs_again_long_after_is_recognised(tmp_path: Path) -> None:
    """D17: nothing of its transactions is left by then, and it still writes nothing.

    An undecided transaction has reached its time-out and cannot be committed.
    """
    group = CommitGroup("application", 1)
    with running_broker(tmp_path / "data", "--txn-retention-seconds", "0") as broker:
        topic = Admin(broker.http_url).new_topic()
        options = WriteOptions.parse({"service_url": broker.service_url, "topic": topic}, Use.BATCH)
        with Brokers(options) as brokers:
            timed_out = Coordinator(brokers).new_transaction(group.on_the_wire, 1)
        assert timed_out is not None
        until_forgotten(broker, timed_out)
        with pytest.raises(CommitFailed, match="has ended; if its timeout of 600 s ended it, raise transaction_timeou"):
            commit(options, group, [timed_out])
        report = attempt(options, group, 2)
        assert report.transaction is not None
        commit(options, group, ids(report))
        until_forgotten(broker, report.transaction)
        assert attempt(options, group, 3).is_late
        commit(options, group, ids(report))
        assert values(broker, topic) == [2]


def test_a_task_without_rows_opens_no_transaction(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup
) -> None:
    empty = pa.RecordBatch.from_pydict({"key": pa.array([], pa.string()), "value": pa.array([], pa.binary())})
    report = RowWriting(options, SCHEMA).write(group, iter([empty, empty]))
    assert report == Written(group, None)
    commit(options, group, ids(report))
    assert values(broker, topic) == []
    assert attempt(options, group, 1).transaction is None


def test_an_aborted_batch_may_be_tried_again_and_a_committed_one_stays(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup
) -> None:
    """D17: Spark also requests an abort if a commit fails after it took effect."""
    first = attempt(options, group, 1)
    abort(options, group)
    with pytest.raises(CommitFailed, match=rf"^batch 5 of '{group.application}' cannot be committed, because a task's"):
        commit(options, group, ids(first))
    second = attempt(options, group, 2)
    commit(options, group, ids(second))
    abort(options, group)
    assert values(broker, topic) == [2]


def test_a_commit_whose_answer_is_lost_is_asked_again(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = attempt(options, group, 1)
    asked = []
    ask = Coordinator.commit_group

    def lose_the_first_answer(self: Coordinator, named: pb.TransactionGroup, winners: list[TransactionId]) -> None:
        ask(self, named, winners)
        asked.append(winners)
        if len(asked) == 1:
            raise ConnectionLost("the broker closed the connection")

    monkeypatch.setattr(Coordinator, "commit_group", lose_the_first_answer)
    commit(options, group, ids(report))
    assert len(asked) == 2
    assert values(broker, topic) == [1]


def test_a_commit_waits_for_a_broker_that_restarts(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup
) -> None:
    report = attempt(options, group, 1)
    patient = WriteOptions(options.service, topic, operation_timeout_seconds=300)
    broker.kill()
    with ThreadPoolExecutor(1) as threads:
        committing_it = threads.submit(commit, patient, group, ids(report))
        broker.restart()
        committing_it.result()
    assert values(broker, topic) == [1]


def test_a_commit_that_nobody_answers_says_whether_it_may_be_asked_again(
    options: WriteOptions, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D17: a job without batch numbers would write the committed rows a second time."""

    def silent(brokers: Brokers) -> None:
        raise OperationTimedOut("broker:6650 did not send its answer")

    monkeypatch.setattr(committing, "Coordinator", silent)
    impatient = WriteOptions(options.service, options.topic, operation_timeout_seconds=1e-9)
    with pytest.raises(
        CommitFailed, match=r"no broker could be reached within .* to commit batch 5 of .*; running it again is safe"
    ):
        commit(impatient, group, [])
    with pytest.raises(
        CommitFailed, match=r"to commit the rows; the rows may be visible all the same, so check before"
    ):
        commit(impatient, CommitGroup("x", 0, once=True), [])
    # What led to an abort is what the user is to see.
    abort(impatient, group)


def failing_rows() -> Iterator[pa.RecordBatch]:
    yield from rows(1)
    raise ZeroDivisionError


def too_large() -> Iterator[pa.RecordBatch]:
    yield from rows(1)
    yield pa.RecordBatch.from_pydict({"key": ["k"], "value": [bytes(6_000_000)]})


@pytest.mark.parametrize(
    ("source", "error"), [(failing_rows, ZeroDivisionError), (too_large, UnwritableRow)], ids=["upstream", "too large"]
)
def test_an_attempt_that_fails_aborts_its_transaction(
    options: WriteOptions,
    group: CommitGroup,
    monkeypatch: pytest.MonkeyPatch,
    source: Callable[[], Iterator[pa.RecordBatch]],
    error: type[Exception],
) -> None:
    begun: list[TransactionId] = []
    begin = Coordinator.new_transaction

    def note(self: Coordinator, named: pb.TransactionGroup, timeout_ms: int) -> TransactionId | None:
        transaction = begin(self, named, timeout_ms)
        assert transaction is not None
        begun.append(transaction)
        return transaction

    monkeypatch.setattr(Coordinator, "new_transaction", note)
    with pytest.raises(error):
        RowWriting(options, SCHEMA).write(group, source())
    with pytest.raises(CommitFailed, match="a task's transaction has ended"):
        commit(options, group, begun)
    assert len(begun) == 1


def test_rows_without_a_topic_that_can_be_written_are_refused(broker: RunningBroker, group: CommitGroup) -> None:
    options = WriteOptions.parse({"service_url": broker.service_url}, Use.BATCH)
    schema = StructType([StructField("value", BinaryType()), StructField("topic", StringType())])
    for topic, sentence in (
        (None, "a row's topic is null"),
        ("persistent://public/default/x", "a row's topic: persistent://public/default/x takes no transactions"),
        ("x", "a row's topic: 'x' is not the full name of a topic"),
    ):
        batch = pa.RecordBatch.from_arrays([pa.array([b"a"]), pa.array([topic], pa.string())], ["value", "topic"])
        with pytest.raises(UnwritableRow, match=sentence):
            RowWriting(options, schema).write(group, iter([batch]))


def test_a_large_record_batch_is_encoded_in_parts(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewire.spark.sink.ENCODED_BYTES_MAX", 100)
    batch = pa.Table.from_batches(rows(*range(100))).combine_chunks().to_batches()[0]
    commit(options, group, ids(RowWriting(options, SCHEMA).write(group, iter([batch]))))
    assert values(broker, topic) == list(range(100))


def test_a_writer_of_a_batch_is_the_same_after_it_was_pickled(
    broker: RunningBroker, topic: str, options: WriteOptions
) -> None:
    """D17: two batches without a name are two applications."""
    for number in (1, 2):
        planned = TidewireWriter(options, SCHEMA)
        reports = [pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(planned)).write(rows(number))))]
        pickle.loads(pickle.dumps(planned)).commit([*reports, None])
    aborted = TidewireWriter(options, SCHEMA)
    report = aborted.write(rows(3))
    aborted.abort([report, None])
    assert values(broker, topic) == [1, 2]


def test_a_stream_knows_its_group_from_its_tasks_or_by_its_option(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup, caplog: pytest.LogCaptureFixture
) -> None:
    report = attempt(options, group, 1)
    TidewireStreamWriter(options, SCHEMA).commit([report, Written(group, None)], group.batch)
    assert not caplog.messages
    TidewireStreamWriter(options, SCHEMA).commit([attempt(options, group, 1)], group.batch)
    assert caplog.messages == [f"{group} is already committed, so this run does not write it again"]
    named = WriteOptions(options.service, topic, txn_app_id=group.application)
    again = CommitGroup(group.application, 6)
    TidewireStreamWriter(named, SCHEMA).commit([attempt(options, again, 2)], 6)
    TidewireStreamWriter(options, SCHEMA).abort([attempt(options, CommitGroup(group.application, 7), 3), None], 7)
    assert values(broker, topic) == [1, 2]


def written(options: WriteOptions, group: CommitGroup, *tasks: tuple[int, ...]) -> None:
    """Write and commit a micro-batch of these tasks, as Spark does."""
    reports = [attempt(options, group, *numbers) for numbers in tasks]
    TidewireStreamWriter(options, SCHEMA).commit([*reports], group.batch)


def test_a_batch_is_known_by_its_rows_and_not_by_its_number(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup
) -> None:
    """E19, D17: tasks may divide them in any way; after a restored checkpoint the numbers belong to other rows."""
    written(options, group, (1, 2), (3,), ())
    written(options, group, (3, 1), (2,))
    for other in ((1, 2), ()), ((1, 2, 4),), ((1, 2, 3, 3),), ((),):
        with pytest.raises(
            CommitFailed, match=r"(?s)batch 5 of .* differs from the one that was written under this number"
        ):
            written(options, group, *other)
    later = group._replace(batch=7)
    written(options, later, (4,))
    with pytest.raises(CommitFailed, match="was repeated, but batches up to 7 were written, so it was neither"):
        written(options, group, (1, 2, 3))
    written(replace(options, trust_batch_numbers=True), group, (5,))
    written(replace(options, trust_batch_numbers=True), later, (5,))
    assert values(broker, topic) == [1, 2, 3, 4]


def test_a_batch_of_the_same_plan_is_the_same_whatever_its_rows(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup, tmp_path: Path
) -> None:
    """E19: a query may compute different rows each time, but Spark plans a batch once."""
    planned = tmp_path / "offsets" / str(group.batch)
    planned.parent.mkdir()
    options = replace(options, checkpoint=tmp_path.as_uri())
    planned.write_text("one")
    written(options, group, (1,))
    written(options, group, (2,))
    planned.write_text("another")
    written(options, group, (1,))
    with pytest.raises(CommitFailed, match="differs from the one that was written"):
        written(options, group, (2,))
    planned.unlink()
    with pytest.raises(CommitFailed, match="differs from the one that was written"):
        written(options, group, (2,))
    assert values(broker, topic) == [1]


@pytest.mark.parametrize("by", ["txn_app_id", "checkpoint"])
def test_tasks_that_were_killed_before_any_has_reported_are_aborted_by_name_or_not_at_all(
    options: WriteOptions, group: CommitGroup, caplog: pytest.LogCaptureFixture, tmp_path: Path, by: str
) -> None:
    """D17: `query.stop()` does this; only the tasks and the checkpoint know the query's id."""
    killed = attempt(options, group, 1)
    TidewireStreamWriter(options, SCHEMA).abort([None], group.batch)
    (said,) = caplog.messages
    assert "transaction_timeout_seconds have passed; to avoid this, set txn_app_id" in said
    if by == "txn_app_id":
        named = replace(options, txn_app_id=group.application)
    else:
        (tmp_path / "metadata").write_text(json.dumps({"id": group.application}))
        named = replace(options, checkpoint=str(tmp_path))
    TidewireStreamWriter(named, SCHEMA).abort([None], group.batch)
    with pytest.raises(CommitFailed, match="a task's transaction has ended"):
        commit(options, group, ids(killed))


def test_a_micro_batch_without_tasks_is_nobodys(
    broker: RunningBroker, topic: str, options: WriteOptions, group: CommitGroup
) -> None:
    """D17: otherwise another query's rows with that number would count as written."""
    named = WriteOptions(options.service, topic, txn_app_id=group.application)
    TidewireStreamWriter(named, SCHEMA).commit([None], group.batch)
    report = attempt(options, group._replace(origin="another query"), 1)
    TidewireStreamWriter(named, SCHEMA).commit([report], group.batch)
    assert values(broker, topic) == [1]


def test_reports_of_another_micro_batch_are_an_error(options: WriteOptions, group: CommitGroup) -> None:
    with pytest.raises(ProtocolViolation, match="tasks of micro-batch 6 report batch 5 of"):
        TidewireStreamWriter(options, SCHEMA).commit([Written(group, None)], 6)


def test_outside_of_a_streams_task_there_is_no_group() -> None:
    with pytest.raises(ProtocolViolation, match=r"does not tell a task its sql\.streaming\.queryId"):
        group_of_task(None)


def scripted(answer: Callable[[pb.BaseCommand], pb.BaseCommand]) -> Brokers:
    """Run brokers of which one leads coordinator 0 of 2, and answers NEW_TXN and END_TXN like this."""

    def assignments(command: pb.BaseCommand) -> list[bytes]:
        leader = pb.TcAssignment(tc_id=0, broker_service_url="pulsar://scripted:6650")
        update = commands.watch_tc_assignments_update(
            command.watch_tc_assignments.watch_id, 2, [leader, pb.TcAssignment(tc_id=1)]
        )
        return [encode_command(update)]

    peer = BlockingPeer(
        {
            T.CONNECT: lambda command: [encode_command(commands.connected("scripted"))],
            T.WATCH_TC_ASSIGNMENTS: assignments,
            T.TC_CLIENT_CONNECT_REQUEST: lambda command: [
                encode_command(commands.tc_client_connect_response(command.tc_client_connect_request.request_id))
            ],
            T.NEW_TXN: lambda command: [encode_command(answer(command))],
            T.END_TXN: lambda command: [encode_command(answer(command))],
        }
    )
    address = BrokerAddress("scripted", 6650)
    connection = BlockingConnection(peer, address, timeout_seconds=30, clock=peer.clock)
    connection.handshake()
    return Brokers(WriteOptions((address,)), lambda address, proxied_to: connection)


def test_a_broker_that_knows_no_groups_is_told_apart() -> None:
    wire = CommitGroup("a", 0).on_the_wire
    coordinator = Coordinator(scripted(lambda command: commands.new_txn_response(command.new_txn.request_id, (0, 1))))
    with pytest.raises(
        ProtocolViolation, match="scripted:6650 does not support groups of transactions; writing from Spark"
    ):
        coordinator.new_transaction(wire, 1000)
    coordinator = Coordinator(scripted(lambda command: commands.end_txn_response(command.end_txn.request_id, (0, 0))))
    with pytest.raises(ProtocolViolation, match="does not support groups"):
        coordinator.commit_group(wire, [])
    with pytest.raises(ProtocolViolation, match="does not support groups"):
        coordinator.abort_group(wire)


@pytest.mark.parametrize("number", [1, 7])
def test_a_coordinator_that_nobody_leads_is_asked_for_again(number: int) -> None:
    with pytest.raises(ConnectFailed, match="scripted:6650 says that no broker coordinates transactions at the moment"):
        Coordinator(scripted(lambda command: command), number=number)


def test_an_id_of_another_coordinator_is_no_transaction_of_this_one() -> None:
    """It would be included here, and aborted at the other coordinator."""

    def answer(command: pb.BaseCommand) -> pb.BaseCommand:
        return commands.new_txn_response(command.new_txn.request_id, (1, 5), group_state=pb.UNDECIDED)

    with pytest.raises(ProtocolViolation, match="coordinator 0 answered with an id of coordinator 1"):
        Coordinator(scripted(answer), number=0).new_transaction(CommitGroup("a", 0).on_the_wire, 1000)


def test_a_refusal_of_another_kind_is_told_in_the_brokers_words(
    options: WriteOptions, group: CommitGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Coordinator, named: pb.TransactionGroup, winners: list[TransactionId]) -> None:
        raise refusal(pb.NotAllowedError, "broker:6650 refuses END_TXN: a batch has 10001 transactions")

    monkeypatch.setattr(Coordinator, "commit_group", refuse)
    with pytest.raises(CommitFailed, match="cannot be committed: broker:6650 refuses END_TXN: a batch has 10001"):
        commit(options, group, [])
