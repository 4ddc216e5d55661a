"""Feature levels: what a store of each level may contain, how it changes level, and which release reads it."""

import pytest

from storage.files import AlreadyLocked
from storage.metadata import log, record_codec, snapshots
from storage.metadata.batches import Body, encode_batches
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
    TakeOver,
)
from storage.metadata.store import InvalidOperation, Put, Record
from tests.support.disk import PowerLost, SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY, EVERYTHING, large, prepare, records_of, seen


@pytest.fixture(autouse=True)
def small_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "PREALLOCATION_BYTES", 4096)


@pytest.fixture
def disk() -> SimulatedFiles:
    return SimulatedFiles(seed=1)


def be_the_older_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Act like the release before epochs: limit the highest level that it reads."""
    monkeypatch.setattr(record_codec, "FEATURE_LEVEL", 2)


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
    assert await level_of(disk) == 3
    assert records_of(disk)[:2] == [FeatureLevel(0, 3), TakeOver(0, 1, "")]


@pytest.mark.parametrize("level", [1, 2])
async def test_a_start_brings_an_older_store_to_the_highest_level(disk: SimulatedFiles, level: int) -> None:
    """C22, R25: its log then has epochs. A change set of any size is possible, and nothing is lost."""
    before = await fill(disk)
    await write_snapshot(disk, DATA, feature_level=level)
    disk = disk.crash(keep=0.0)
    for _ in range(2):
        async with EmbeddedStore.open(disk, DATA) as store:
            assert store.statistics().extra["feature_level"] == 3
            assert await seen(store) == before
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.commit([Put(f"/x/{number}", bytes(1000)) for number in range(1050)])


@pytest.mark.parametrize("marker", [BeginTransaction("t"), EndTransaction(), AbortTransaction("r")])
async def test_a_marker_in_a_log_of_level_1_is_fatal(disk: SimulatedFiles, marker: LogRecord) -> None:
    """R25: this includes an open transaction, because the release that wrote the log does not know markers."""
    await fill(disk)
    info = await write_snapshot(disk, DATA, feature_level=1)
    point = snapshots.load_newest(disk, DIRECTORY).point
    file = disk.open(DIRECTORY / f"{info.sequence + 1:020}.log")
    file.write_at(0, encode_batches(point, [Body(encode(marker), 1)], confirmed=point.sequence, offset=0)[0])
    file.sync()
    before = disk.names(DIRECTORY)
    with pytest.raises(CorruptMetadata, match="needs feature level 2, but the log has 1"):
        open_folder(disk, DIRECTORY)
    assert disk.names(DIRECTORY) == before


async def test_the_release_before_refuses_what_it_does_not_know(
    disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R25: it refuses log and snapshot with the file's name, and leaves them untouched."""
    before = await fill(disk)
    with monkeypatch.context() as older:
        be_the_older_release(older)
        for _ in range(2):
            with pytest.raises(CorruptMetadata, match="need feature level 3; this release reads up to 2"):
                open_folder(disk, DIRECTORY)
    await write_snapshot(disk, DATA)
    with monkeypatch.context() as older:
        be_the_older_release(older)
        with pytest.raises(CorruptMetadata, match="need feature level 3; this release reads up to 2"):
            open_folder(disk, DIRECTORY)
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await seen(store) == before


@pytest.mark.parametrize("level", [1, 2])
async def test_a_downgrade_snapshot_is_for_the_release_before(disk: SimulatedFiles, level: int) -> None:
    """R26, C22: it has the same state without markers, and a new log. Only names of that release are left."""
    before = await fill(disk)
    info = await write_snapshot(disk, DATA, feature_level=level)
    assert isinstance(info, SnapshotInfo)
    assert (info.feature_level, info.revision, info.records) == (level, 4, 104)
    assert info.size_bytes == len(disk.content(info.path))
    assert disk.names(DIRECTORY) == [f"{info.sequence:020}.snapshot", f"{info.sequence + 1:020}.log", "lock"]
    assert disk.content(DIRECTORY / f"{info.sequence + 1:020}.log").strip(b"\0") == b""
    loaded = snapshots.load_newest(disk, DIRECTORY)
    assert (loaded.image.feature_level, loaded.image.taken_over) == (level, None)
    disk = disk.crash(keep=0.0)
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await seen(store) == before
        await store.commit(large(prefix="/again"))


async def test_the_way_back_works_again_and_again(disk: SimulatedFiles) -> None:
    """R26: also for a store that was downgraded before, and for the same level."""
    before = await fill(disk)
    for level in (2, 1, 3, 2, 3, 3):
        info = await write_snapshot(disk, DATA, feature_level=level)
        assert info.feature_level == level
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await seen(store) == before


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


async def test_an_earlier_releases_files_may_end_anywhere(disk: SimulatedFiles) -> None:
    """R25: that release cut off torn tails, so its log file may end anywhere; from level 2 on that is damage."""
    await fill(disk)
    for level in (1, 2):
        other = disk.kill()
        info = await write_snapshot(other, DATA, feature_level=level)
        other.cut(DIRECTORY / f"{info.sequence + 1:020}.log", 100)
        if level == 1:
            for _ in range(2):
                assert await level_of(other) == 3
        else:
            with pytest.raises(CorruptMetadata, match="the file was cut there"):
                await level_of(other)


async def test_power_loss_at_every_operation_of_a_change_of_level() -> None:
    """R26, R27: the store is as before or as after, with the same state."""
    found: set[tuple[str, ...]] = set()
    for operations in range(1, 140):
        disk = SimulatedFiles(seed=operations)
        async with EmbeddedStore.open(disk, DATA) as store:
            await prepare(store)
            before = await seen(store)
        disk.lose_power_after(operations)
        try:
            await write_snapshot(disk, DATA, feature_level=2)
        except PowerLost:
            disk = disk.crash()
        else:
            disk = disk.crash(keep=0.0)
        names = [name for name in disk.names(DIRECTORY) if name.endswith(".log")]
        found.add(tuple(names))
        # The older release looks at its own names. If it could go on, nothing is left that this one would go on with.
        if any("-" not in name for name in names):
            assert len(names) == 1
        for _ in range(2):
            async with EmbeddedStore.open(disk, DATA) as store:
                assert await seen(store) == before
                assert store.statistics().extra["feature_level"] == 3
    assert any("-" not in name for names in found for name in names)


async def test_mistakes_are_told(disk: SimulatedFiles) -> None:
    """R26: an unknown level, no store, an open store: nothing is created or changed."""
    with pytest.raises(FileNotFoundError, match="no metadata store"):
        await write_snapshot(disk, DATA)
    assert not disk.exists(DIRECTORY)
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/a", b"")
        with pytest.raises(AlreadyLocked):
            await write_snapshot(disk.process(), DATA)
    for level in (0, 4):
        with pytest.raises(InvalidOperation, match=f"no feature level {level}"):
            await write_snapshot(disk, DATA, feature_level=level)
    async with EmbeddedStore.open(disk, DATA) as store:
        assert len(await store.scan(*EVERYTHING)) == 1
