"""The fence of a journal: how a new writer makes sure that the old one confirms nothing more.

Files `fence-<epoch>` in the journal's folder. A writer takes the next free epoch by creating its file, durably, and
only then reads what the writer before it left. After every sync, before it confirms, a writer looks whether the next
epoch's file exists; if so, somebody has begun to read and may not have seen what was just written, so it is not
confirmed.

Why files and not the operating system's lock: a lock ends with its process but not while the process is stopped, and a
stopped writer that wakes up later must learn that it was replaced (D2).
"""

import re
from pathlib import Path
from typing import Final

from storage.errors import Fenced
from storage.files import Files

_NAME: Final = re.compile(r"fence-(\d{10})")


class Fence:
    """One writer's epoch."""

    __slots__ = ("_files", "_mine", "_next", "epoch")

    def __init__(self, files: Files, directory: Path, epoch: int) -> None:
        self._files = files
        self.epoch = epoch
        self._mine = _path(directory, epoch)
        self._next = _path(directory, epoch + 1)

    def check(self) -> None:
        """Return if no later writer had claimed the journal when this began. Blocks.

        Raises:
            Fenced: one has.
        """
        # Old fences are removed in rising order, so this order of looking cannot miss one between two removals.
        if self._files.exists(self._next) or not self._files.exists(self._mine):
            raise Fenced(f"another process took over the journal in {self._mine.parent}, which was epoch {self.epoch}")


def claim(files: Files, directory: Path) -> Fence:
    """Take the next epoch. Durable on return; from then on the writer before confirms nothing. Blocks."""
    epoch = max(_epochs(files, directory), default=0)
    while True:
        epoch += 1
        try:
            file = files.open(_path(directory, epoch), create=True, exclusive=True)
        except FileExistsError:
            continue
        try:
            file.sync()
        finally:
            file.close()
        files.sync_dir(directory)
        return Fence(files, directory, epoch)


def remove_older(files: Files, directory: Path, fence: Fence) -> None:
    """Remove the fences below this one, the oldest first. Blocks."""
    for epoch in sorted(_epochs(files, directory)):
        if epoch < fence.epoch:
            files.remove(_path(directory, epoch))


def _path(directory: Path, epoch: int) -> Path:
    return directory / f"fence-{epoch:010d}"


def _epochs(files: Files, directory: Path) -> list[int]:
    return [int(match[1]) for name in files.names(directory) if (match := _NAME.fullmatch(name))]
