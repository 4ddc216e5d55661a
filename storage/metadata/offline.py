"""Work on a store that no broker has open: a snapshot of its state, at another feature level if wanted.

This is the path between releases. A store keeps its feature level until an operator changes it, because a release that
does not know a level refuses the store. A snapshot holds plain state, without transaction markers, so the same state
can be written at either level. The log begins anew behind it, in its own file (R25, R26).
"""

from pathlib import Path
from typing import NamedTuple

from storage.files import Files
from storage.metadata import snapshots
from storage.metadata.log import (
    numbered,
)
from storage.metadata.opening import metadata_directory, open_folder
from storage.metadata.records import TRANSACTIONS_LEVEL
from storage.metadata.store import InvalidOperation


class SnapshotInfo(NamedTuple):
    """A whole, durable snapshot. Besides it, the store has only an empty log."""

    path: Path
    sequence: int
    """The last log batch whose effects it contains."""
    revision: int
    records: int
    size_bytes: int
    feature_level: int


async def write_snapshot(files: Files, data_dir: Path, *, feature_level: int | None = None) -> SnapshotInfo:
    """Write the state of `<data_dir>/metadata` as a snapshot, and remove the log before it. Durable on return.

    `feature_level` is the store's level from then on; None leaves it unchanged. Level 1 is for releases without
    transactions. It makes the store refuse change sets above 1 MiB. Existing records stay. The store is opened as a
    broker would open it: an unfinished transaction is aborted, and sessions of an earlier process end. If this is
    interrupted, the folder holds the old state or the new one.

    Raises:
        InvalidOperation: no such feature level.
        FileNotFoundError: there is no metadata store in that folder.
        AlreadyLocked: a broker has it open.
        CorruptMetadata: a file is damaged, or of a later release.
    """
    if feature_level is not None and not 1 <= feature_level <= TRANSACTIONS_LEVEL:
        raise InvalidOperation(
            f"there is no feature level {feature_level}; this release knows 1 to {TRANSACTIONS_LEVEL}"
        )
    directory = metadata_directory(data_dir)
    if not await files.run(files.exists, directory):
        raise FileNotFoundError(2, "there is no metadata store", str(directory))
    opened = await files.run(open_folder, files, directory)
    try:
        await files.run(opened.log.roll)
        image = opened.image
        level = image.feature_level if feature_level is None else feature_level
        point = opened.log.point
        view = snapshots.View(image, point, feature_level=level)
        size = await snapshots.write(files, directory, view)
        await files.run(opened.log.trim, point.sequence)
        path = numbered(directory, point.sequence, ".snapshot")
        return SnapshotInfo(path, point.sequence, image.revision, len(image.records), size, level)
    finally:
        opened.close()
