"""Copies files between a cut, a backup and a new data folder, with their checksums. Everything blocks."""

from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Final

import google_crc32c

from storage.backup.manifest import MANIFEST, BackedUpFile, BackupDamaged, Manifest
from storage.files import Files

COPY_BYTES: Final = 4 * 1024 * 1024
"""A file is copied in pieces of this size."""

Progress = Callable[[int], None]
"""Called with the number of bytes that were copied since the last call."""


class FolderNotEmpty(Exception):
    """The target of a backup or a restore has files, or is one. Nothing was changed."""

    def __init__(self, target: Path) -> None:
        what = "is not empty" if target.is_dir() else "is a file"
        super().__init__(f"{target} {what}. Choose a folder that is empty or does not exist.")


def require_empty(files: Files, target: Path) -> None:
    """Return if the target is an empty folder, or does not exist.

    Raises:
        FolderNotEmpty: it has files, or is one.
    """
    if files.exists(target) and (not target.is_dir() or files.names(target)):
        raise FolderNotEmpty(target)


def copy_cut(files: Files, cut: Path, target: Path, manifest: Manifest, progress: Progress) -> Manifest:
    """Make a backup in the empty folder `target` from a cut. Durable on return.

    Returns what the backup's own list says. It is written last.

    Raises:
        BackupDamaged: a file of the cut is gone or too short.
        DiskFull: the backup has no list, so nobody takes it for one.
    """
    copied = [copy_file(files, cut, target, each, progress, is_padded=False) for each in manifest.files]
    sync_folders(files, target, manifest)
    whole = manifest._replace(files=tuple(copied))
    path = target / MANIFEST
    file = files.open(path, create=True, exclusive=True)
    try:
        file.write_at(0, whole.encode())
        file.sync()
    finally:
        file.close()
    files.sync_dir(target)
    return whole


def read_manifest(files: Files, backup: Path) -> Manifest:
    """The list of a backup's files.

    Raises:
        BackupDamaged: it is missing or damaged.
    """
    path = backup / MANIFEST
    try:
        file = files.open(path)
    except (FileNotFoundError, NotADirectoryError) as missing:
        raise BackupDamaged(f"{path} is missing, so this is no complete backup. Choose another one.") from missing
    try:
        return Manifest.decode(file.read_at(0, file.size()), str(path))
    finally:
        file.close()


def check_backup(files: Files, backup: Path, manifest: Manifest, progress: Progress) -> None:
    """Return if every file of the backup is there and is what was copied.

    Raises:
        BackupDamaged: one is missing or differs.
    """
    for each in manifest.files:
        crc = _copy(files, backup / each.path, None, each, progress)
        if crc != each.crc:
            raise BackupDamaged(f"{backup / each.path} is damaged: its checksum differs. Restore from another backup.")


def copy_file(
    files: Files, source: Path, target: Path, each: BackedUpFile, progress: Progress, *, is_padded: bool
) -> BackedUpFile:
    """Copy one file to the same path below `target`. Durable on return, but for its name. Returns it with its checksum.

    With `is_padded` it has its size in a data folder, as zeros behind what counts.

    Raises:
        BackupDamaged: it is missing or too short.
    """
    path = target / each.path
    files.make_dir(path.parent)
    copied = each._replace(crc=_copy(files, source / each.path, path, each, progress))
    if is_padded and each.size > each.length:
        file = files.open(path)
        try:
            file.truncate(each.size)
            file.sync()
        finally:
            file.close()
    return copied


def sync_folders(files: Files, target: Path, manifest: Manifest) -> None:
    """Make the names of all copied files durable."""
    for folder in {PurePosixPath(each.path).parent for each in manifest.files}:
        files.sync_dir(target / folder)


def _copy(files: Files, source: Path, target: Path | None, each: BackedUpFile, progress: Progress) -> int:
    try:
        read = files.open(source)
    except FileNotFoundError as missing:
        raise BackupDamaged(f"{source} is missing. Restore from another backup.") from missing
    written = None
    try:
        written = None if target is None else files.open(target, create=True, exclusive=True)
        crc = offset = 0
        while offset < each.length:
            data = read.read_at(offset, min(COPY_BYTES, each.length - offset))
            if not data:
                raise BackupDamaged(
                    f"{source} has {offset} bytes, but {each.length} were backed up. Restore from another backup."
                )
            crc = google_crc32c.extend(crc, data)
            if written is not None:
                written.write_at(offset, data)
            offset += len(data)
            progress(len(data))
        if written is not None:
            written.sync()
        return crc
    finally:
        read.close()
        if written is not None:
            written.close()
