"""Reading a folder that nobody has open, as a broker would find it, without changing a byte."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from storage.files import AlreadyLocked, DiskFiles, ReadOnlyFiles
from storage.metadata import log as log_module
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.inspection import (
    ABORTED,
    COMMITTED,
    UNFINISHED,
    FoundBatch,
    FoundState,
    Inspection,
    NoMetadata,
    Torn,
    inspect,
)
from storage.metadata.offline import write_snapshot
from storage.metadata.opening import metadata_directory, open_folder
from storage.metadata.records import AbortTransaction, BeginTransaction, EndTransaction, SessionStart
from storage.metadata.store import Record
from tests.support.metadata_folders import (
    LARGE,
    aborted,
    append,
    contents,
    make_folder,
    next_revision,
    small,
    unfinished,
)
from tests.support.metadata_log import snapshots_in

DISK = DiskFiles()

T = TypeVar("T")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 4096)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A store that was closed properly."""
    make_folder(tmp_path / "data")
    return tmp_path / "data"


def looked_at(data: Path, look: Callable[[Inspection], T]) -> T:
    """Return what `look` returns, and check that the folder is unchanged, including modification times."""
    before = contents(data)
    with inspect(ReadOnlyFiles(), data) as inspection:
        result = look(inspection)
    assert contents(data) == before
    return result


def state(data: Path) -> FoundState:
    return looked_at(data, lambda inspection: inspection.state(lambda _size: None))


def followed(data: Path) -> tuple[list[FoundBatch], Torn | None]:
    batches: list[FoundBatch] = []
    torn = looked_at(data, lambda inspection: inspection.follow(batches.append))
    return batches, torn


def test_what_is_found_is_what_opening_finds(data: Path) -> None:
    found = state(data)
    assert (found.unfinished_records, found.torn) == (None, None)
    opened = open_folder(DISK, metadata_directory(data))
    opened.close()
    assert found.image.scan("", "~", None) == opened.image.scan("", "~", None)
    assert found.image.query("odd", "", "~", None) == opened.image.query("odd", "", "~", None)
    assert len(found.image.records) == 7 + LARGE


async def test_a_snapshot_and_the_log_behind_it_are_read_together(data: Path) -> None:
    """R27: the state is the same with and without the snapshot."""
    before = state(data).image
    await write_snapshot(DISK, data)
    assert state(data).image.scan("", "~", None) == before.scan("", "~", None)
    append(DISK, data, small([Record("/later", b"", next_revision(DISK, data))]))
    found = state(data)
    assert len(found.image.records) == 7 + LARGE + 1


def test_an_unfinished_transaction_is_not_shown_and_stays_as_it_is(data: Path) -> None:
    """R24, R13: none of its records is there, and reading writes no abort."""
    append(DISK, data, unfinished(next_revision(DISK, data)))
    found = state(data)
    assert found.unfinished_records is not None
    assert 0 < found.unfinished_records < 300
    assert found.image.scan("/partial/", "/partial/~", None) == []
    assert len(found.image.records) == 7 + LARGE
    assert state(data).unfinished_records == found.unfinished_records


def test_the_log_tells_what_became_of_each_record(data: Path) -> None:
    """R24: committed, aborted and unfinished transactions are marked, and none of their records is lost."""
    revision = next_revision(DISK, data)
    append(DISK, data, aborted(revision), small([Record("/between", b"", revision)]), unfinished(revision + 1))
    batches, torn = followed(data)
    assert torn is None
    records = [found for batch in batches for found in batch.records]
    fates: dict[str, list[str]] = {}
    for found in records:
        if isinstance(found.record, Record):
            fates.setdefault(found.record.key.split("/")[1], []).append(found.fate)
    assert fates["n"] == [COMMITTED] * 8
    assert fates["large"] == [COMMITTED] * LARGE
    assert fates["between"] == [COMMITTED]
    assert set(fates["partial"]) == {ABORTED, UNFINISHED}
    markers = [
        (type(found.record), found.fate)
        for found in records
        if isinstance(found.record, BeginTransaction | EndTransaction | AbortTransaction)
    ]
    assert markers == [
        (BeginTransaction, COMMITTED),
        (EndTransaction, COMMITTED),
        (BeginTransaction, ABORTED),
        (AbortTransaction, ABORTED),
        (BeginTransaction, UNFINISHED),
    ]


async def test_batches_are_told_with_their_places(data: Path) -> None:
    await write_snapshot(DISK, data)
    append(DISK, data, small([Record("/later", b"", next_revision(DISK, data))]))
    batches, _ = followed(data)
    assert [batch.sequence for batch in batches] == list(range(batches[0].sequence, batches[-1].sequence + 1))
    for batch in batches:
        assert batch.path.read_bytes()[batch.offset : batch.offset + 4] == b"TWM1"
        assert int(batch.path.stem[:20]) <= batch.sequence
    assert batches[-1].records[-1].record == Record("/later", b"", next_revision(DISK, data) - 1)


def test_records_of_ended_sessions_are_still_there(data: Path) -> None:
    """The next start will end them; until then the folder contains them."""
    revision = next_revision(DISK, data)
    append(
        DISK, data, small([SessionStart(revision, 1000)]), small([Record("/e", b"", revision + 1, session=revision)])
    )
    assert state(data).image.records.get("/e") is not None


def test_a_torn_tail_is_told_and_stays(data: Path) -> None:
    """D9: only a start may cut it off."""
    revision = next_revision(DISK, data)
    append(DISK, data, small([Record("/torn", b"z" * 2000, revision)]))
    _path, offset, *_rest = last = followed(data)[0][-1]
    path = last.path
    content = bytearray(path.read_bytes())
    # The first sector that lies wholly in it never reached the disk.
    sector = (offset + 40 + 512) // 512 * 512
    content[sector : sector + 512] = bytes(512)
    path.write_bytes(content)
    found = state(data)
    assert found.torn is not None
    assert (found.torn.path, found.torn.offset) == (path, offset)
    assert found.image.records.get("/torn") is None
    assert followed(data)[1] == found.torn


def test_damage_is_refused_as_opening_refuses_it(data: Path) -> None:
    (path,) = (data / "metadata").glob("*.log")
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptMetadata) as caught:
        state(data)
    with pytest.raises(CorruptMetadata) as as_opened:
        open_folder(DISK, data / "metadata")
    assert (caught.value.path, caught.value.offset, caught.value.reason) == (
        as_opened.value.path,
        as_opened.value.offset,
        as_opened.value.reason,
    )


def test_the_log_is_told_up_to_the_damage(data: Path) -> None:
    (path,) = (data / "metadata").glob("*.log")
    third = followed(data)[0][2]
    content = bytearray(path.read_bytes())
    content[third.offset + 50] ^= 1
    path.write_bytes(content)
    batches: list[FoundBatch] = []
    with pytest.raises(CorruptMetadata) as caught:
        looked_at(data, lambda inspection: inspection.follow(batches.append))
    assert caught.value.offset == third.offset
    assert [batch.sequence for batch in batches] == [1, 2]


async def test_the_newest_snapshot_counts(data: Path) -> None:
    """A crash between writing a snapshot and removing the one before leaves both."""
    await write_snapshot(DISK, data)
    older = data / "metadata" / snapshots_in(DISK.names(data / "metadata"))[0]
    content = older.read_bytes()
    append(DISK, data, small([Record("/later", b"", next_revision(DISK, data))]))
    await write_snapshot(DISK, data)
    older.write_bytes(content)
    assert state(data).image.records.get("/later") is not None


def test_what_only_the_last_file_may_end_in(data: Path) -> None:
    """R18: an unfinished transaction before another file is refused, as at an opening."""
    append(DISK, data, unfinished(next_revision(DISK, data)))
    last = followed(data)[0][-1]
    (data / "metadata" / f"{last.sequence + 1:020}{last.path.name[20:]}").write_bytes(bytes(4096))
    for look in (lambda: state(data), lambda: open_folder(DISK, data / "metadata")):
        with pytest.raises(CorruptMetadata) as caught:
            look()
        assert caught.value.path == last.path


async def test_a_file_that_begins_elsewhere_is_refused(data: Path) -> None:
    await write_snapshot(DISK, data)
    (log,) = (data / "metadata").glob("*.log")
    renamed = log.rename(log.with_name(f"{int(log.stem[:20]) + 1:020}{log.name[20:]}"))
    with pytest.raises(CorruptMetadata, match="begins with batch") as caught:
        state(data)
    assert caught.value.path == renamed


async def test_a_missing_file_is_named(data: Path) -> None:
    await write_snapshot(DISK, data)
    (log,) = (data / "metadata").glob("*.log")
    log.unlink()
    with pytest.raises(CorruptMetadata) as caught:
        state(data)
    assert caught.value.path == log


def test_nothing_to_look_at(tmp_path: Path) -> None:
    for folder in (tmp_path / "absent", tmp_path):
        with pytest.raises(NoMetadata), inspect(ReadOnlyFiles(), folder):
            pass
    (tmp_path / "metadata").mkdir()
    with pytest.raises(NoMetadata), inspect(ReadOnlyFiles(), tmp_path):
        pass
    assert contents(tmp_path) == {}


def test_who_writes_and_who_looks_keep_out_of_each_others_way(data: Path) -> None:
    opened = open_folder(DISK, data / "metadata")
    with pytest.raises(AlreadyLocked), inspect(ReadOnlyFiles(), data):
        pass
    opened.close()
    with inspect(ReadOnlyFiles(), data), inspect(ReadOnlyFiles(), data), pytest.raises(AlreadyLocked):
        open_folder(DISK, data / "metadata")
    open_folder(DISK, data / "metadata").close()


def test_a_copy_without_a_lock_file_can_be_read(data: Path) -> None:
    (data / "metadata" / "lock").unlink()
    assert len(state(data).image.records) == 7 + LARGE


def test_progress_is_told_in_bytes(data: Path) -> None:
    told: list[int] = []
    size = looked_at(data, lambda inspection: (inspection.state(told.append), inspection.size_bytes)[1])
    assert 0 < sum(told) <= size
