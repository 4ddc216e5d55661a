"""The state that a log gives: whole transactions or nothing of them, with any batch boundaries."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.metadata import transactions
from storage.metadata.delta import Delta
from storage.metadata.image import Image
from storage.metadata.outcomes import Made, Run, WriteId
from storage.metadata.record_codec import CorruptRecord, encode
from storage.metadata.records import (
    AbortTransaction,
    Answered,
    BeginTransaction,
    DataRecord,
    Deletion,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    RangeDeletion,
    SequenceAdvance,
    SessionEnd,
    SessionStart,
    SnapshotFooter,
    SnapshotHeader,
    SnapshotNamed,
    TakeOver,
)
from storage.metadata.replay import Replay
from storage.metadata.store import Delete, DeleteRange, IndexEntry, Op, Put, PutSequential, Record

BEGIN, END, ABORT = BeginTransaction("t"), EndTransaction(), AbortTransaction("r")


def replay(*records: LogRecord, level: int = 2) -> Replay:
    """Replay these records in one batch, after a feature level, and a record and a session to change."""
    reading = Replay(Image())
    reading.batch(encode(FeatureLevel(0, level)))
    reading.batch(encode(Record("/a", b"1", 1, (IndexEntry("i", "x"),))) + encode(SequenceAdvance(1, 5)))
    reading.batch(encode(SessionStart(2, 1000)) + encode(Record("/e", b"", 3, (), None, 2)))
    reading.batch(b"".join(map(encode, records)))
    return reading


def state(image: Image) -> object:
    """Return everything in an image, as a comparable value."""
    return (
        image.revision,
        image.sequence,
        image.feature_level,
        {session: (opened.timeout_ms, sorted(opened.keys)) for session, opened in image.sessions.items()},
        image.scan("", "\U0010ffff", None),
        image.query("i", "", "\U0010ffff", None),
        image.taken_over,
        list(image.outcomes.each()),
    )


EVERYTHING: tuple[DataRecord, ...] = (
    Record("/a", b"2", 4, (IndexEntry("i", "y"),)),
    Record("/b", b"", 4, (), None, 2),
    Record("/c", b"", 4, (IndexEntry("i", "z"),)),
    Deletion(4, "/b"),
    RangeDeletion(4, "/c", "/d"),
    SequenceAdvance(4, 9),
    SessionStart(4, 7),
    SessionEnd(4, 2),
)
"""One of each kind of record that a transaction may hold."""


def test_an_empty_transaction_changes_nothing() -> None:
    """R3: begin and end, or begin and abort, with nothing in between."""
    before = state(replay().image)
    assert state(replay(BEGIN, END).image) == before
    assert state(replay(BEGIN, ABORT, BEGIN, END).image) == before


def test_a_transaction_is_its_records_at_its_end() -> None:
    """R3, R14: nothing of it before its end, all of it after."""
    before = state(replay().image)
    for count in range(len(EVERYTHING) + 1):
        reading = replay(BEGIN, *EVERYTHING[:count])
        assert state(reading.image) == before
        assert reading.begun == BEGIN
        assert reading.open_records == count
    assert state(replay(BEGIN, *EVERYTHING, END).image) == state(replay(*EVERYTHING).image) != before
    assert replay(BEGIN, *EVERYTHING, END).begun is None


@pytest.mark.parametrize("count", range(len(EVERYTHING) + 1))
def test_an_abort_leaves_the_state_before_the_begin(count: int) -> None:
    """R15: values, versions, indexes, counters and sessions; the revision is used again."""
    reading = replay(BEGIN, *EVERYTHING[:count], ABORT)
    assert state(reading.image) == state(replay().image)
    assert (reading.begun, reading.open_records, reading.aborted) == (None, 0, 1)
    again = b"".join(map(encode, (BEGIN, *EVERYTHING, END)))
    reading.batch(again)
    assert state(reading.image) == state(replay(*EVERYTHING).image)


@pytest.mark.parametrize(
    ("records", "reason"),
    [
        ((BEGIN, BEGIN), "begins while transaction 't' is open"),
        ((BeginTransaction(), Record("/b", b"", 4), BEGIN), "begins while a transaction is open"),
        ((BEGIN, END, BEGIN, Record("/b", b"", 4), BEGIN), "begins while"),
    ],
)
def test_a_begin_while_one_is_open_is_fatal(records: tuple[LogRecord, ...], reason: str) -> None:
    """R4: transactions are never nested."""
    with pytest.raises(CorruptRecord, match=reason):
        replay(*records)


@pytest.mark.parametrize("marker", [END, ABORT])
@pytest.mark.parametrize("before", [(), (Record("/b", b"", 4),), (BEGIN, END), (BEGIN, ABORT)])
def test_an_end_without_a_begin_is_fatal(before: tuple[LogRecord, ...], marker: LogRecord) -> None:
    """R5: without an open transaction there is nothing to end or abort."""
    with pytest.raises(CorruptRecord, match=f"{type(marker).__name__} with no transaction open"):
        replay(*before, marker)


@pytest.mark.parametrize(
    "outsider",
    [Record("/b", b"", 3), Record("/b", b"", 5), Deletion(5, "/a"), SessionEnd(9, 2), FeatureLevel(4, 2)],
)
def test_nothing_stands_between_begin_and_end_but_its_own_records(outsider: LogRecord) -> None:
    """R7, R18: a record of another revision belongs to no open transaction, so that one was not the log's last."""
    with pytest.raises(CorruptRecord, match="is inside transaction 't'"):
        replay(BEGIN, EVERYTHING[0], outsider)


@pytest.mark.parametrize("outsider", [SnapshotHeader(1, 1, 1), SnapshotFooter(0)])
def test_records_of_snapshots_do_not_stand_in_a_log(outsider: LogRecord) -> None:
    """R21: this holds in a transaction and outside."""
    for before in ((), (BEGIN,)):
        with pytest.raises(CorruptRecord, match="does not belong in a log"):
            replay(*before, outsider)


def test_an_unfinished_transaction_is_the_last_thing_in_the_log() -> None:
    """R18: no other log file follows it."""
    replay(BEGIN, *EVERYTHING, END).end_file()
    replay(BEGIN, *EVERYTHING, ABORT).end_file()
    with pytest.raises(CorruptRecord, match="open at the end of a file"):
        replay(BEGIN, *EVERYTHING).end_file()


@pytest.mark.parametrize("marker", [BEGIN, END, ABORT])
def test_a_marker_needs_its_feature_level(marker: LogRecord) -> None:
    """R25: in a log of level 1 any marker is fatal, even an open transaction at the end."""
    with pytest.raises(CorruptRecord, match="needs feature level 2, but the log has 1"):
        replay(marker, level=1)


TAKE_OVER = TakeOver(3, 4, "b", "localhost:1")
ANSWERED = Answered(WriteId(2, 5, 4), Made(4, (Run(1, 2),)))
NAMED = SnapshotNamed(3, 1, 2, 4)


@pytest.mark.parametrize("record", [TAKE_OVER, ANSWERED, NAMED])
def test_a_record_of_epochs_needs_its_feature_level(record: LogRecord) -> None:
    """C22, R25: the release before does not know these records, so they are fatal in a log that it may read."""
    replay(record, level=3)
    replay(FeatureLevel(3, 3), record)
    with pytest.raises(CorruptRecord, match=f"{type(record).__name__} needs feature level 3, but the log has 2"):
        replay(record)


@pytest.mark.parametrize("record", [TAKE_OVER._replace(revision=4), NAMED._replace(revision=4)])
def test_no_epoch_begins_and_no_snapshot_is_named_inside_a_transaction(record: LogRecord) -> None:
    """R17, R21: a take-over aborts what is open first, and a snapshot is taken while nothing is open."""
    with pytest.raises(CorruptRecord, match="is inside transaction 't'"):
        replay(BEGIN, record, level=3)


def test_epochs_rise() -> None:
    """C1: the first batch of a lower epoch behind a higher one is not from this log."""
    assert replay(TAKE_OVER, TAKE_OVER._replace(epoch=9), level=3).image.epoch == 9
    for epoch in (4, 3):
        with pytest.raises(CorruptRecord, match=f"epoch {epoch} begins behind epoch 4"):
            replay(TAKE_OVER, TAKE_OVER._replace(epoch=epoch), level=3)


def test_an_outcome_is_there_with_its_change_set() -> None:
    """M22: in one step with what the write did, and not before the end of a large one."""
    write = ANSWERED.write
    assert replay(EVERYTHING[0], ANSWERED, level=3).image.outcomes.find(write) == ANSWERED.made
    assert replay(BEGIN, EVERYTHING[0], ANSWERED, level=3).image.outcomes.find(write) is None
    assert replay(BEGIN, EVERYTHING[0], ANSWERED, END, level=3).image.outcomes.find(write) == ANSWERED.made
    assert replay(BEGIN, EVERYTHING[0], ANSWERED, ABORT, level=3).image.outcomes.find(write) is None


def test_an_outcome_goes_with_its_session() -> None:
    """M22, E16: nobody repeats a write of a session that has ended, even one that ended by that write."""
    for records in ((ANSWERED, SessionEnd(5, 2)), (SessionEnd(4, 2), ANSWERED)):
        assert list(replay(*records, level=3).image.outcomes.each()) == []


def test_an_outcome_that_cannot_be_is_fatal() -> None:
    """M22: the same write twice in a log means that the log is not what was written."""
    with pytest.raises(CorruptRecord, match="made twice"):
        replay(ANSWERED, ANSWERED, level=3)


OPS: st.SearchStrategy[Op] = st.one_of(
    st.builds(
        Put,
        st.sampled_from(["/a", "/b", "/c"]),
        st.binary(max_size=3),
        indexes=st.sampled_from([(), (IndexEntry("i", "x"),)]),
    ),
    st.builds(PutSequential, st.just("/s"), st.just(b""), st.just("p")),
    st.builds(Delete, st.sampled_from(["/a", "/b"])),
    st.builds(DeleteRange, st.sampled_from(["/a", "/b"]), st.sampled_from(["/c", "/t"])),
)
CHANGE_SETS = st.lists(st.tuples(st.lists(OPS, min_size=1, max_size=5, unique_by=str), st.sampled_from("CEA")))


def history(change_sets: list[tuple[list[Op], str]]) -> tuple[list[LogRecord], Image]:
    """Draw change sets committed plain (C), in a transaction (E), or aborted (A): their log and their result."""
    image = Image()
    records: list[LogRecord] = []
    first: list[Op] = [Put("/first", b"")]
    for ops, how in [(first, "C"), *change_sets]:
        delta = Delta(image)
        if not image.feature_level:
            delta.set_feature_level(2)
        delta.commit(ops)
        for change_set in delta.change_sets:
            if how == "C":
                records += change_set
            else:
                records += [BeginTransaction(), *change_set, EndTransaction() if how == "E" else AbortTransaction()]
            if how != "A":
                image.apply(change_set)
    return records, image


@given(CHANGE_SETS, st.data())
def test_batch_boundaries_are_free(change_sets: list[tuple[list[Op], str]], data: st.DataObject) -> None:
    """R10: one record per batch, an end with the next begin, or all in one batch: the image is the same."""
    records, image = history(change_sets)
    one_each, all_in_one, drawn = Replay(Image()), Replay(Image()), Replay(Image())
    for record in records:
        one_each.batch(encode(record))
    all_in_one.batch(b"".join(map(encode, records)))
    place = 0
    while place < len(records):
        count = data.draw(st.integers(1, 5))
        drawn.batch(b"".join(map(encode, records[place : place + count])))
        place += count
    assert state(one_each.image) == state(all_in_one.image) == state(drawn.image) == state(image)


@given(CHANGE_SETS)
def test_every_prefix_is_whole_change_sets(change_sets: list[tuple[list[Op], str]]) -> None:
    """R13, R27: after any record the image is that of the finished transactions, at every replay."""
    records, _ = history(change_sets)
    reading = Replay(Image())
    expected = state(reading.image)
    for number, record in enumerate(records):
        reading.batch(encode(record))
        if reading.begun is None:
            expected = state(reading.image)
        assert state(reading.image) == expected
        again = Replay(Image())
        again.batch(b"".join(map(encode, records[: number + 1])))
        assert state(again.image) == expected


# -- how they are written


def read_back(bodies: list[bytes]) -> Image:
    reading = Replay(Image())
    reading.batch(encode(FeatureLevel(0, 2)))
    for body in bodies:
        reading.batch(body)
    assert reading.begun is None
    return reading.image


@pytest.mark.parametrize(("count", "size"), [(1, 10), (3, 5000), (100, 100), (5000, 100), (3, 500_000), (700, 20_000)])
def test_a_transaction_fills_any_number_of_batches(count: int, size: int) -> None:
    """R8: in pieces of bounded size, of batches of 8 KiB, or of one larger record alone."""
    change_set: list[DataRecord] = [Record(f"/{number:05}", bytes(size), 1) for number in range(count)]
    pieces = list(transactions.pieces("name", change_set))
    for piece in pieces:
        assert sum(len(body.data) for body in piece) < transactions.PIECE_BYTES_MAX + max(8192, size + 100)
        for body in piece:
            assert len(body.data) <= 8192 or body.records == 1
    image = read_back([body.data for piece in pieces for body in piece])
    assert image.scan("", "~", None) == change_set


def test_what_fits_one_batch_needs_no_transaction() -> None:
    """R8: this means 8 KiB of records, or one record of any size."""
    assert transactions.fits_one_batch([Record("/a", bytes(1_000_000), 1)])
    assert transactions.fits_one_batch([Record("/a", bytes(4000), 1), Record("/b", bytes(4000), 1)])
    assert not transactions.fits_one_batch([Record("/a", bytes(4000), 1), Record("/b", bytes(4200), 1)])
    assert not transactions.fits_one_batch([Record("/a", bytes(8180), 1), SequenceAdvance(1, 1)])


def test_names_and_reasons_are_cut_to_what_a_marker_takes() -> None:
    """R2: the cut is at a character's border."""
    assert transactions.shortened("é" * 200) == "é" * 127
    (body,) = transactions.abort("x" * 1000)
    assert body.data == encode(AbortTransaction("x" * 255))
