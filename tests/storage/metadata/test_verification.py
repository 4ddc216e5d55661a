"""Verification of files: it finds everything that can be wrong, and reports nothing else as damage."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from storage.files import DiskFiles, Files, ReadOnlyFiles
from storage.metadata import log as log_module
from storage.metadata import snapshots
from storage.metadata.batches import BEGINNING, Body, Point, encode_batches, link_at
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.inspection import FoundBatch, inspect
from storage.metadata.offline import write_snapshot
from storage.metadata.opening import open_folder
from storage.metadata.record_codec import encode
from storage.metadata.records import (
    BeginTransaction,
    Deletion,
    EndTransaction,
    FeatureLevel,
    LogRecord,
    SessionStart,
    SnapshotFooter,
    SnapshotHeader,
    TakeOver,
)
from storage.metadata.store import IndexEntry, Record
from storage.metadata.verification import FileReport, verify
from tests.support.disk import SimulatedFiles
from tests.support.metadata_folders import (
    LARGE,
    aborted,
    append,
    contents,
    fill,
    make_folder,
    next_revision,
    small,
    unfinished,
)

DISK = DiskFiles()
SIMULATED = Path("/data")


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "PREALLOCATION_BYTES", 4096)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_folder(tmp_path / "data")
    return tmp_path / "data"


def verified(data: Path, files: Files | None = None) -> list[FileReport]:
    with inspect(files or ReadOnlyFiles(), data) as inspection:
        return list(verify(inspection, lambda _size: None))


def the_damaged(reports: Iterable[FileReport]) -> CorruptMetadata:
    (damage,) = [report.damage for report in reports if report.damage is not None]
    return damage


def epoch_of(data: Path) -> str:
    """Return what names of the newest epoch have; nothing in a folder of the release before epochs."""
    return max((f"-{fence.name[6:]}" for fence in (data / "metadata").glob("fence-*")), default="")


def write_snapshot_file(data: Path, point: Point, records: list[LogRecord], *, revision: int = 100) -> Path:
    """Write a snapshot of any content, at any place, with valid checksums."""
    content = [SnapshotHeader(revision, *point), *records, SnapshotFooter(len(records))]
    body = Body(b"".join(encode(record) for record in content), len(content))
    path = data / "metadata" / f"{point.sequence:020}{epoch_of(data)}.snapshot"
    path.write_bytes(encode_batches(BEGINNING, [body], confirmed=0, offset=0)[0])
    return path


def write_log_file(data: Path, after: Point, *batches: list[LogRecord]) -> Path:
    path = data / "metadata" / f"{after.sequence + 1:020}{epoch_of(data)}.log"
    bodies = [Body(b"".join(encode(record) for record in records), len(records)) for records in batches]
    content, _ = encode_batches(after, bodies, confirmed=after.sequence, offset=0)
    path.write_bytes(content.ljust(4096, b"\0"))
    return path


def test_a_whole_log_is_counted_and_not_changed(data: Path) -> None:
    revision = next_revision(DISK, data)
    append(DISK, data, aborted(revision), small([Record("/a", b"", revision)]), unfinished(revision + 1))
    before = contents(data)
    first, report = verified(data)
    assert contents(data) == before
    assert (first.damage, report.damage) == (None, None)
    assert not report.is_snapshot
    assert (first.committed, first.aborted, first.unfinished_records, first.torn) == (1, 0, None, None)
    assert (report.committed, report.aborted, report.torn) == (0, 1, None)
    assert report.unfinished_records is not None
    assert 0 < report.unfinished_records < 300
    assert first.records > 8 + LARGE
    assert report.records > report.unfinished_records
    assert first.batches + report.batches > 20


async def test_a_snapshot_and_the_log_behind_it(data: Path) -> None:
    await write_snapshot(DISK, data)
    append(DISK, data, small([Record("/a", b"", next_revision(DISK, data))]))
    snapshot, named, log = verified(data)
    assert (snapshot.is_snapshot, snapshot.records, snapshot.is_compared, snapshot.damage) == (
        True,
        7 + LARGE,
        False,
        None,
    )
    assert (named.is_snapshot, named.batches, named.damage) == (False, 1, None)
    assert (log.is_snapshot, log.batches, log.damage) == (False, 2, None)


async def test_a_snapshot_is_held_against_the_log_that_led_to_it(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R27: a crash between a snapshot and the trimming leaves both, which must agree."""
    monkeypatch.setattr(log_module, "remove_covered", lambda *_arguments: None)
    await write_snapshot(DISK, data)
    reports = verified(data)
    assert [report.damage for report in reports] == [None] * 4
    assert [report.is_compared for report in reports] == [False, False, True, False]


def test_files_that_are_not_in_the_log_are_told_and_are_no_damage(data: Path) -> None:
    """C1: a deposed controller that wakes leaves files of its own epoch beside the log."""
    orphan = data / "metadata" / f"{3:020}-{1:010}.log"
    open_folder(DISK, data / "metadata").close()
    content, _ = encode_batches(Point(2, 77), [Body(b"x", 1)], confirmed=2, offset=0)
    orphan.write_bytes(content.ljust(4096, b"\0"))
    reports = verified(data)
    assert [report.damage for report in reports] == [None] * 3
    assert [report.path for report in reports if report.is_off_chain] == [orphan]
    open_folder(DISK, data / "metadata").close()


def point_before(path: Path, batch: FoundBatch) -> Point:
    """Return where a batch of the file begins, in the log."""
    link = link_at(path.read_bytes(), batch.offset)
    assert link is not None
    return link.before


def point_after(data: Path) -> Point:
    """Return where the log ends."""
    with inspect(ReadOnlyFiles(), data) as inspection:
        batches: list[FoundBatch] = []
        inspection.follow(batches.append)
    link = link_at(batches[-1].path.read_bytes(), batches[-1].offset)
    assert link is not None
    return link.after


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda image: image.apply([Record("/n/3", b"other", 3)]), "'/n/3'"),
        (lambda image: image.apply([Deletion(image.revision, "/n/3")]), "'/n/3'"),
        (lambda image: image.apply([Deletion(image.revision, "/n/7")]), "records"),
        (lambda image: setattr(image, "sequence", 9), "sequence"),
        (lambda image: setattr(image, "revision", image.revision + 1), "revision"),
        (lambda image: image.apply([SessionStart(image.revision, 5)]), "sessions"),
    ],
)
async def test_a_snapshot_that_differs_from_the_log_is_found(tmp_path: Path, change: object, word: str) -> None:
    data = tmp_path / "data"
    await fill(DISK, data, large=False)
    point = point_after(data)
    with inspect(ReadOnlyFiles(), data) as inspection:
        image = inspection.state(lambda _size: None).image
    revision = image.revision
    assert callable(change)
    change(image)
    image.revision = max(image.revision, revision)
    await snapshots.write(DISK, data / "metadata", snapshots.View(image, point), 1)
    snapshots.finish(DISK, data / "metadata", snapshots.SnapshotName(point.sequence, 1))
    write_log_file(data, point)
    damage = the_damaged(verified(data))
    assert damage.path.suffix == ".snapshot"
    assert "another state" in damage.reason
    assert word in damage.reason


def test_a_snapshot_of_another_history_is_found(data: Path) -> None:
    point = point_after(data)
    write_snapshot_file(data, Point(point.sequence, point.crc ^ 1), [FeatureLevel(1, 2)])
    write_log_file(data, Point(point.sequence, point.crc ^ 1))
    damage = the_damaged(verified(data))
    assert damage.path.suffix == ".snapshot"
    assert "is not the batch" in damage.reason


@pytest.mark.parametrize(
    ("records", "word"),
    [
        ([Record("/a", b"", 101)], "version 101"),
        ([Record("/a", b"", 0)], "version 0"),
        ([Record("/a", b"", 5, session=3)], "session 3"),
        ([Record("/a", b"", 5, (IndexEntry("i", "k"), IndexEntry("i", "k")))], "index 'i'"),
        ([BeginTransaction(), EndTransaction()], "BeginTransaction"),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_found(tmp_path: Path, records: list[LogRecord], word: str) -> None:
    """R21, M8: this includes markers, which a snapshot never has."""
    (tmp_path / "metadata").mkdir()
    path = write_snapshot_file(tmp_path, Point(7, 1), records)
    write_log_file(tmp_path, Point(7, 1))
    damage = the_damaged(verified(tmp_path))
    assert damage.path == path
    assert word in damage.reason


def test_a_damaged_file_does_not_hide_what_is_behind_it(data: Path) -> None:
    """What follows is compared with its own statements."""
    point = point_after(data)
    (first,) = (data / "metadata").glob("*.log")
    second = write_log_file(data, point, [Record("/a", b"", next_revision(DISK, data))])
    content = bytearray(first.read_bytes())
    content[130] ^= 1
    first.write_bytes(content)
    reports = verified(data)
    assert [(report.path, report.damage is None) for report in reports] == [(first, False), (second, True)]
    assert reports[1].batches == 1
    damaged = bytearray(second.read_bytes())
    damaged[45] ^= 1
    second.write_bytes(damaged)
    assert [report.damage is None for report in verified(data)] == [False, False]


def test_missing_files_are_found(data: Path) -> None:
    point = point_after(data)
    (first,) = (data / "metadata").glob("*.log")
    behind = write_log_file(data, Point(point.sequence + 3, 1), [Record("/a", b"", 1)])
    damages = [report.damage for report in verified(data) if report.damage is not None]
    assert [damage.path for damage in damages] == [first]
    assert f"batch {point.sequence + 3}" in damages[0].reason
    first.unlink()
    assert the_damaged(verified(data)).path == behind
    behind.unlink()
    write_snapshot_file(data, point, [FeatureLevel(1, 3), TakeOver(1, 1, "b")])
    assert "missing" in the_damaged(verified(data)).reason


def test_a_file_under_another_name_is_found(data: Path) -> None:
    (first,) = (data / "metadata").glob("*.log")
    renamed = first.rename(first.with_name(f"{3:020}{first.name[20:]}"))
    write_snapshot_file(data, Point(2, 1), [FeatureLevel(1, 2)])
    assert the_damaged(verified(data)).path == renamed


def test_a_file_under_another_name_is_found_behind_a_damaged_one(data: Path) -> None:
    (first,) = (data / "metadata").glob("*.log")
    first.rename(first.with_name(f"{3:020}{first.name[20:]}"))
    snapshot = write_snapshot_file(data, Point(2, 1), [FeatureLevel(1, 2)])
    snapshot.write_bytes(snapshot.read_bytes()[:-1])
    reports = verified(data)
    assert [report.damage is None for report in reports] == [False, False]
    assert reports[1].damage is not None
    assert "it begins with batch 1" in reports[1].damage.reason


def test_what_only_the_last_file_may_end_in(data: Path) -> None:
    """R18: an unfinished transaction."""
    revision = next_revision(DISK, data)
    append(DISK, data, [Body(encode(BeginTransaction("cut")) + encode(Record("/a", b"", revision)), 2)])
    *_before, report = verified(data)
    assert (report.damage, report.unfinished_records) == (None, 1)
    with inspect(ReadOnlyFiles(), data) as inspection:
        batches: list[FoundBatch] = []
        inspection.follow(batches.append)
    last = batches[-1]
    first = last.path
    # As if the log had gone on in another file.
    body = first.read_bytes()[last.offset + 40 : last.offset + 40 + last.size_bytes]
    before = point_before(first, last)
    _, after = encode_batches(before, [Body(body, 2)], confirmed=before.sequence, offset=last.offset)
    write_log_file(data, after)
    damage = the_damaged(verified(data))
    assert (damage.path, damage.offset) == (first, last.offset + 40 + last.size_bytes)


def damages_in(disk: SimulatedFiles) -> list[CorruptMetadata]:
    try:
        return [report.damage for report in verified(SIMULATED, disk) if report.damage is not None]
    except CorruptMetadata as fence:
        return [fence]


async def test_it_finds_damage_wherever_opening_does() -> None:
    """R9, D9: for every flipped byte of log and snapshot, verification refuses if and only if opening would."""
    whole = SimulatedFiles()
    await fill(whole, SIMULATED, large=False)
    await write_snapshot(whole, SIMULATED)
    append(whole, SIMULATED, unfinished(next_revision(whole, SIMULATED))[:1])
    refused = 0
    for name in whole.names(SIMULATED / "metadata"):
        path = SIMULATED / "metadata" / name
        written = len(whole.content(path).rstrip(b"\0"))
        for byte in range(min(written, 1200)):
            disk = whole.kill().crash(keep=1.0)
            disk.flip(path, byte * 8 + byte % 8)
            found = damages_in(disk)
            refusals = []
            try:
                open_folder(disk, SIMULATED / "metadata").close()
            except CorruptMetadata as damage:
                refusals.append(damage)
            if name.startswith("fence"):
                # Who reads the fence refuses the whole folder.
                assert [damage.path for damage in refusals] in ([], [path])
                continue
            assert [(each.path, each.offset) for each in found] == [(each.path, each.offset) for each in refusals]
            refused += len(refusals)
    assert refused > 500


def test_progress_reaches_the_end(data: Path) -> None:
    told: list[int] = []
    with inspect(ReadOnlyFiles(), data) as inspection:
        list(verify(inspection, told.append))
        assert sum(told) == inspection.size_bytes


def test_an_empty_store_is_whole(tmp_path: Path) -> None:
    open_folder(DISK, tmp_path / "metadata").close()
    (report,) = verified(tmp_path)
    assert (report.damage, report.records) == (None, 2)
