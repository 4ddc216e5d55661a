"""What a folder of this release tells releases before epochs, and that this release ignores it."""

import pytest

from storage.errors import IdentityMismatch
from storage.identity import FolderIdentity, require_embedded_metadata
from storage.metadata import record_codec, snapshots
from storage.metadata.corruption import CorruptMetadata
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.offline import write_snapshot
from storage.metadata.older_releases import NOTICE, leave_notice
from storage.metadata.snapshots import SnapshotName
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY

NEEDS = "need feature level 3; this release reads up to 2"


def as_an_older_release(disk: SimulatedFiles, monkeypatch: pytest.MonkeyPatch) -> str:
    """Read the snapshot that a release before epochs would read first, by its rule. Return why it refuses it, or "".

    It takes names of 20 digits for those of snapshots, and knows no others.
    """
    stems = [name.removesuffix(".snapshot") for name in disk.names(DIRECTORY) if name.endswith(".snapshot")]
    known = [stem for stem in stems if len(stem) == 20 and stem.isdecimal()]
    if not known:
        return ""
    path = DIRECTORY / f"{max(known, key=int)}.snapshot"
    with monkeypatch.context() as older:
        older.setattr(record_codec, "FEATURE_LEVEL", 2)
        try:
            snapshots.load(path, disk.content(path))
        except CorruptMetadata as refused:
            return str(refused)
    return ""


async def grown(disk: SimulatedFiles) -> SimulatedFiles:
    """Start on this disk, write, and lose the power."""
    async with EmbeddedStore.open(disk, DATA) as store:
        await store.put("/a", b"")
    return disk.crash(keep=0.0)


async def test_an_older_release_is_told_which_level_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """C22, E3: on a new folder, behind a snapshot, and behind an upgrade. It would make a new log beside this one."""
    disk = await grown(SimulatedFiles())
    assert NEEDS in as_an_older_release(disk, monkeypatch)
    await write_snapshot(disk, DATA)
    disk = disk.crash(keep=0.0)
    assert NEEDS in as_an_older_release(disk, monkeypatch)
    await write_snapshot(disk, DATA, feature_level=2)
    disk = disk.crash(keep=0.0)
    assert as_an_older_release(disk, monkeypatch) == "", "it may have the folder back"
    disk = await grown_again(disk)
    assert NEEDS in as_an_older_release(disk, monkeypatch)


async def grown_again(disk: SimulatedFiles) -> SimulatedFiles:
    """Start on a disk that has a store, which is whole."""
    async with EmbeddedStore.open(disk, DATA) as store:
        assert await store.get("/a") is not None
    return disk.crash(keep=0.0)


async def test_this_release_ignores_the_notice() -> None:
    """It is no snapshot, though it has the name of one."""
    disk = await grown(SimulatedFiles())
    assert NOTICE in disk.names(DIRECTORY)
    assert SnapshotName.parse(NOTICE) is None
    assert snapshots.newest(disk, DIRECTORY) is None
    disk = await grown_again(disk)
    assert disk.names(DIRECTORY).count(NOTICE) == 1


async def test_a_downgrade_that_was_interrupted_leaves_the_notice_until_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """R26, C22: at each moment either this release goes on with the state, or the older one does, and it is whole."""
    for operations in range(1, 200):
        disk = await grown(SimulatedFiles(seed=operations))
        disk.lose_power_after(operations)
        try:
            await write_snapshot(disk, DATA, feature_level=2)
        except OSError:
            pass
        else:
            assert operations > 20
            return
        disk = disk.crash()
        if not as_an_older_release(disk, monkeypatch):
            assert not [name for name in disk.names(DIRECTORY) if name.startswith("fence-")], operations
        await grown_again(disk)
    raise AssertionError("the downgrade never ended")


async def test_a_full_disk_has_no_notice_and_the_next_start_makes_it() -> None:
    """C24: a start is not refused for want of it."""
    disk = SimulatedFiles()
    disk.make_dir(DIRECTORY)
    disk.set_capacity(10)
    leave_notice(disk, DIRECTORY, 1)
    assert disk.names(DIRECTORY) == []
    disk.set_capacity(None)
    assert NOTICE in (await grown(disk)).names(DIRECTORY)


async def test_a_folder_with_nothing_but_the_notice_has_no_metadata() -> None:
    """E1: it was emptied."""
    disk = await grown(SimulatedFiles())
    identity = FolderIdentity("folder", "cluster", "here")
    require_embedded_metadata(disk, DATA, identity, DIRECTORY)
    for name in disk.names(DIRECTORY):
        if name != NOTICE:
            disk.remove(DIRECTORY / name)
    with pytest.raises(IdentityMismatch, match="holds no metadata"):
        require_embedded_metadata(disk, DATA, identity, DIRECTORY)
