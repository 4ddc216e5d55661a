"""Work on a store that no broker has open: a snapshot of its state, for another release if wanted.

Every start of a broker brings the store to `EPOCHS_LEVEL`, because its log then has epochs. A release that does not
know a level refuses the store. So the way back is a snapshot for that release: plain state, without transaction markers
and epochs, in files that have that release's names. The log begins anew behind it (R25, R26).

Such a snapshot is written in steps. Each leaves a folder that this release opens, with the same state. The older
release opens it behind step 6 only, when no file is left that this one would go on with:

1. Write the snapshot under its older name.
2. Make the older release's next log file, but closed. That release then misses the file behind it, and refuses.
3. Note in the fence that no file of its epoch is needed, and remove the files of all epochs, the newest one last.
4. Open the closed file: give it the name of an open one.
5. Remove the fences.
6. Remove the notice to older releases.
"""

from pathlib import Path
from typing import NamedTuple

from storage.files import Files
from storage.metadata import snapshots
from storage.metadata.batches import Point
from storage.metadata.chain import LogName
from storage.metadata.epochs import remove_epochs
from storage.metadata.log import log_names, prepare_file
from storage.metadata.older_releases import remove_notice
from storage.metadata.opening import Opened, metadata_directory, open_folder, take_snapshot
from storage.metadata.records import EPOCHS_LEVEL, FEATURE_LEVEL
from storage.metadata.snapshots import SnapshotName, View
from storage.metadata.store import InvalidOperation


class SnapshotInfo(NamedTuple):
    """A whole, durable snapshot. Besides it, the store has only an empty log, or one that names the snapshot."""

    path: Path
    sequence: int
    """The last log batch whose effects it contains."""
    revision: int
    records: int
    size_bytes: int
    feature_level: int


async def write_snapshot(files: Files, data_dir: Path, *, feature_level: int | None = None) -> SnapshotInfo:
    """Write the state of `<data_dir>/metadata` as a snapshot, and remove the log before it. Durable on return.

    `feature_level` is the store's level from then on; None means the highest. Levels 1 and 2 are for releases without
    epochs. Level 1 is also for releases without transactions: they refuse change sets above 1 MiB. Existing records
    stay. The store is opened as a broker would open it: an unfinished transaction is aborted, and sessions of an
    earlier process end. If this is interrupted, the folder holds the old state or the new one.

    Raises:
        InvalidOperation: no such feature level.
        FileNotFoundError: there is no metadata store in that folder.
        AlreadyLocked: a broker has it open.
        DiskFull: there is no space.
        CorruptMetadata: a file is damaged, or of a later release.
    """
    if feature_level is not None and not 1 <= feature_level <= FEATURE_LEVEL:
        raise InvalidOperation(f"there is no feature level {feature_level}; this release knows 1 to {FEATURE_LEVEL}")
    directory = metadata_directory(data_dir)
    if not await files.run(files.exists, directory):
        raise FileNotFoundError(2, "there is no metadata store", str(directory))
    opened = await files.run(open_folder, files, directory)
    try:
        level = opened.image.feature_level if feature_level is None else feature_level
        if level < EPOCHS_LEVEL:
            return await _write_for_older(files, directory, opened, level)
        name, size = await files.run(take_snapshot, files, directory, opened.started)
        return _info(directory, name, opened, size, level)
    finally:
        opened.close()


async def _write_for_older(files: Files, directory: Path, opened: Opened, level: int) -> SnapshotInfo:
    point = opened.log.point
    name = SnapshotName(point.sequence, 0)
    size = await snapshots.write(files, directory, View(opened.image, point, feature_level=level), name.epoch)
    await files.run(_leave_to_older, files, directory, opened, point)
    return _info(directory, name, opened, size, level)


def _leave_to_older(files: Files, directory: Path, opened: Opened, point: Point) -> None:
    name = SnapshotName(point.sequence, 0)
    files.rename(directory / name.unfinished, directory / str(name))
    closed = LogName(point.sequence + 1, 0, is_closed=True)
    prepared = prepare_file(files, directory, str(closed._replace(is_closed=False)))
    prepared.close()
    files.rename(prepared.path, directory / str(closed))
    files.sync_dir(directory)
    opened.log.epoch.note_ended()
    for older in [each for each in snapshots.snapshot_names(files, directory) if each != name]:
        files.remove(directory / str(older))
    for log in log_names(files.names(directory)):
        if log != closed:
            files.remove(directory / str(log))
    files.sync_dir(directory)
    files.rename(directory / str(closed), directory / str(closed._replace(is_closed=False)))
    files.sync_dir(directory)
    remove_epochs(files, directory)
    remove_notice(files, directory)


def _info(directory: Path, name: SnapshotName, opened: Opened, size: int, level: int) -> SnapshotInfo:
    image = opened.image
    return SnapshotInfo(directory / str(name), name.sequence, image.revision, len(image.records), size, level)
