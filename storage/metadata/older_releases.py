"""A file that tells releases before epochs why they cannot open the store.

Those releases see none of the files that have an epoch in their names. Beside a log with epochs they would find none,
and make a new one. Beside an older log they would only miss its newest file. So the first controller leaves them the
file NOTICE. To them it is the newest snapshot. They read it before they change anything, and it needs a feature level
that they do not know. So they refuse the store, and say which level it needs.

This release ignores the file. It is made once the log has a file with an epoch. A way back to an older release removes
it last (`offline`). Everything here blocks.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from storage.files import DiskFull, Files
from storage.metadata.batches import BEGINNING, Body, encode_batches
from storage.metadata.record_codec import encode
from storage.metadata.records import EPOCHS_LEVEL, FeatureLevel

NOTICE: Final = f"{20 * '9'}.snapshot"
"""As an older release names a snapshot, and behind every snapshot of a real log."""


def leave_notice(files: Files, directory: Path, epoch: int) -> None:
    """Make the file if it is absent. Durable on return, unless the disk is full: then a later controller makes it.

    `epoch` is that of the caller. So no two processes write the same file, and what a killed one left is removed.
    """
    if files.exists(directory / NOTICE):
        return
    body = Body(encode(FeatureLevel(0, EPOCHS_LEVEL)), 1)
    data, _point = encode_batches(BEGINNING, [body], confirmed=0, offset=0)
    unfinished = directory / f"{20 * '9'}-{epoch:010}.snapshot-unfinished"
    try:
        file = files.open(unfinished, create=True)
        try:
            file.write_at(0, data)
            file.sync()
        finally:
            file.close()
        files.rename(unfinished, directory / NOTICE)
    except DiskFull:
        with suppress(FileNotFoundError):
            files.remove(unfinished)
    except FileNotFoundError:
        # A later controller has removed it, and has left a notice of its own.
        return
    files.sync_dir(directory)


def remove_notice(files: Files, directory: Path) -> None:
    """Remove the file. Durable on return. Only for a downgrade."""
    with suppress(FileNotFoundError):
        files.remove(directory / NOTICE)
    files.sync_dir(directory)
