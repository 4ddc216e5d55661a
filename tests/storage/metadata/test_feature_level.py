"""Feature levels: what a store of each level may contain, how it changes level, and which release reads it."""

from pathlib import Path

import pytest

from storage.files import AlreadyLocked
from storage.metadata import log, record_codec
from storage.metadata.batches import Body
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.offline import SnapshotInfo, write_snapshot
from storage.metadata.opening import open_folder
from storage.metadata.record_codec import encode
from storage.metadata.records import (
    AbortTransaction,
    BeginTransaction,
    EndTransaction,
    FeatureLevel,
    LogRecord,
)
from storage.metadata.store import ChangeSetTooLarge, InvalidOperation, Put, PutSequential, Record
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY, EVERYTHING, large, markers, prepare, records_of, seen


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


def be_the_older_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act like the release before transactions: limit the highest level that it reads."""
    monkeypatch.setattr(record_codec, "FEATURE_LEVEL", 1)


async def level_of(disk: SimulatedFiles) -> float:
    async with EmbeddedStore.open(disk, DATA) as store:
        return store.statistics().extra["feature_level"]


async def fill(disk: SimulatedFiles) -> object:
    async with EmbeddedStore.open(disk, DATA) as store:
        await prepare(store)
        await store.commit(large())
        return await seen(store)


async def test_a_new_store_has_the_highest_level(disk: SimulatedFiles) -> None:
    """R25: its first record says so, before any marker."""
    await fill(disk)
    assert await level_of(disk) == 2
    first = next(records_of(disk))
    assert first == FeatureLevel(0, 2)


async def test_a_store_keeps_its_level_until_asked(disk: SimulatedFiles) -> None:
    """R25: opening a store of level 1, and writing to it, leaves it readable for the release before."""
    await fill(disk)
    await write_snapshot(disk, DATA, feature_level=1)
    for _ in range(3):
        async with EmbeddedStore.open(disk, DATA) as store:
            await store.put("/more", b"")
            await store.take_snapshot()
        assert await level_of(disk) == 1


async def test_below_its_level_a_large_change_set_is_refused_up_front(disk: SimulatedFiles) -> None:
    """R25, M25: the error is clear and names the solution, and nothing is done; what fits one batch is accepted."""
    await fill(disk)
    await write_snapshot(disk, DATA, feature_level=1)
    async with EmbeddedStore.open(disk, DATA) as store:
        before = await seen(store)
        with pytest.raises(ChangeSetTooLarge, match=r"1048576.*level 1.*metadata snapshot --feature-level 2"):
            await store.commit([Put(f"/x/{number}", bytes(1000)) for number in range(1050)])
        assert await seen(store) == before
        await store.commit([Put(f"/x/{number}", bytes(1000)) for number in range(900)])
        await store.commit([Put("/x/1", bytes(9000)), PutSequential("/x", bytes(9000), "p")])
        before = await seen(store)
    (name,) = [name for name in disk.names(DIRECTORY) if name.endswith(".log")]
    assert not any(isinstance(each, BeginTransaction) for each in log_records(disk, DIRECTORY / name))
    async with EmbeddedStore.open(disk.crash(keep=0.0), DATA) as store:
        assert await seen(store) == before


def log_records(disk: SimulatedFiles, path: Path) -> list[LogRecord]:
    """Return the content of a log file, whichever batch it begins with."""
    content = disk.content(path)
    found: list[LogRecord] = []
    offset = 0
    while content[offset : offset + 4] == b"TWM1":
        size = int.from_bytes(content[offset + 32 : offset + 36])
        found += record_codec.decode(content[offset + 40 : offset + 40 + size])
        offset += 40 + size
    return found


@pytest.mark.parametrize("marker", [BeginTransaction("t"), EndTransaction(), AbortTransaction("r")])
async def test_a_marker_in_a_log_of_level_1_is_fatal(disk: SimulatedFiles, marker: LogRecord) -> None:
    """R25: this includes an open transaction, because nobody may write its abort there."""
    await fill(disk)
    await write_snapshot(disk, DATA, feature_level=1)
    opened = open_folder(disk, DIRECTORY)
    opened.log.append([Body(encode(marker), 1)])
    opened.close()
    with pytest.raises(CorruptMetadata, match="needs feature level 2, but the log has 1"):
        open_folder(disk, DIRECTORY)


async def test_the_release_before_refuses_what_it_does_not_know(
    disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R25: it refuses log and snapshot with the file's name, and leaves them untouched."""
    before = await fill(disk)
    with monkeypatch.context() as older:
        be_the_older_release(older)
        for _ in range(2):
            with pytest.raises(CorruptMetadata, match="need feature level 2; this release reads up to 1"):
                open_folder(disk, DIRECTORY)
    await write_snapshot(disk, DATA)
    with monkeypatch.context() as older:
        be_the_older_release(older)
        with pytest.raises(CorruptMetadata, match="need feature level 2; this release reads up to 1"):
            open_folder(disk, DIRECTORY)
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await seen(store) == before


async def test_a_downgrade_snapshot_is_for_the_release_before(
    disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R26: it has the same state without markers, and a new log; that release continues, and the way back works."""
    before = await fill(disk)
    info = await write_snapshot(disk, DATA, feature_level=1)
    assert isinstance(info, SnapshotInfo)
    assert (info.feature_level, info.revision, info.records) == (1, 4, 104)
    assert info.size_bytes == len(disk.content(info.path))
    assert disk.names(DIRECTORY) == [info.path.name, f"{info.sequence + 1:020}.log", "lock"]
    assert markers(disk, info.path) == []
    disk = disk.crash(keep=0.0)
    with monkeypatch.context() as older:
        be_the_older_release(older)
        async with EmbeddedStore.open(disk, DATA) as store:
            assert await seen(store) == before
            await store.put("/older", b"")
            after = await seen(store)
    assert await level_of(disk) == 1
    back = await write_snapshot(disk, DATA, feature_level=2)
    assert back.feature_level == 2
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await seen(store) == after
        await store.commit(large(prefix="/again"))


async def test_a_snapshot_offline_aborts_what_is_open(disk: SimulatedFiles) -> None:
    """R26, R22: a downgrade of a store whose writer died in a transaction contains nothing of it."""
    before = await fill(disk)
    opened = open_folder(disk, DIRECTORY)
    opened.log.append([Body(encode(BeginTransaction("t")) + encode(Record("/x", b"", 5)), 2)])
    opened.close()
    info = await write_snapshot(disk, DATA, feature_level=1)
    assert info.revision == 4
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await seen(store) == before


async def test_an_earlier_releases_files_are_made_whole_by_an_upgrade(disk: SimulatedFiles) -> None:
    """R25: that release cut off torn tails, so its log file may end anywhere; at level 2 that would be damage."""
    await fill(disk)
    info = await write_snapshot(disk, DATA, feature_level=1)
    disk.cut(DIRECTORY / f"{info.sequence + 1:020}.log", 100)
    assert await level_of(disk.kill()) == 1
    await write_snapshot(disk, DATA, feature_level=2)
    for _ in range(2):
        assert await level_of(disk) == 2


async def test_power_loss_at_every_operation_of_a_change_of_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """R26, R27: the store is as before or as after, with the same state."""
    levels: set[float] = set()
    for operations in range(1, 60):
        disk = SimulatedFiles(seed=operations)
        async with EmbeddedStore.open(disk, DATA) as store:
            await prepare(store)
            before = await seen(store)
        disk.lose_power_after(operations)
        try:
            await write_snapshot(disk, DATA, feature_level=1)
        except PowerLost:
            disk = disk.crash()
        else:
            disk = disk.crash(keep=0.0)
        async with EmbeddedStore.open(disk, DATA) as store:
            assert await seen(store) == before
            levels.add(level := store.statistics().extra["feature_level"])
        assert await level_of(disk) == level
    assert levels == {1, 2}


async def test_mistakes_are_told(disk: SimulatedFiles) -> None:
    """R26: an unknown level, no store, an open store: nothing is created or changed."""
    with pytest.raises(FileNotFoundError, match="no metadata store"):
        await write_snapshot(disk, DATA)
    assert not disk.exists(DIRECTORY)
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/a", b"")
        with pytest.raises(AlreadyLocked):
            await write_snapshot(disk.process(), DATA)
    for level in (0, 3):
        with pytest.raises(InvalidOperation, match=f"no feature level {level}"):
            await write_snapshot(disk, DATA, feature_level=level)
    async with EmbeddedStore.open(disk, DATA) as store:
        assert len(await store.scan(*EVERYTHING)) == 1
