"""The fences of a folder: files `fence-<epoch>` by which writers replace each other.

A writer takes an epoch by making its fence, durably. From then on, a check of any lower epoch fails. So a writer that
checks after its sync, before it confirms, confirms nothing that a later writer could have missed. No clock is involved,
and a stopped process that wakes up learns that it was replaced.

At most one epoch passes its check, whichever process stops between any two of these steps:

| rule                                                         | what it is for                                     |
|--------------------------------------------------------------|----------------------------------------------------|
| A fence is written and synced before it is linked.           | It is there whole or not at all, and a full disk   |
|                                                              | changes no epoch.                                  |
| The link fails if the fence exists.                          | It decides between two that want the same epoch.   |
| The unfinished file exists before its maker looks for higher | No number is taken twice. A maker that slept since |
| fences. Unfinished files are removed before fences are.      | then has no file left to link.                     |
| A maker that finds a higher fence after its link has lost.   | Claims may skip numbers.                           |
| A maker makes the number above every lower fence, if that is | A check looks only at the fence above its own.     |
| missing, as an empty file.                                   |                                                    |
| Fences are removed in rising order, and the highest stays.   | A check sees the fence above, or misses its own.   |

Everything here blocks. See `storage.fence` for the journal's fence.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from storage.errors import StorageError
from storage.files import Files
from storage.sector import SECTOR

T = TypeVar("T")

_FENCE: Final = re.compile(r"fence-(\d{10})")
_UNFINISHED: Final = re.compile(r"fence-[0-9a-f]{16}\.unfinished")


class EpochTaken(StorageError):
    """Another process made this fence, or a higher one. The caller may try a higher epoch."""

    retriable = True

    def __init__(self, path: Path) -> None:
        super().__init__(f"another process made {path} or a later fence at this moment. Try again with a later epoch")


class TakenEpoch:
    """An epoch, held by the process that made its fence."""

    __slots__ = ("_files", "_next", "epoch", "path")

    def __init__(self, files: Files, path: Path, following: Path, epoch: int) -> None:
        self._files = files
        self._next = following
        self.path = path
        self.epoch = epoch

    def is_newest(self) -> bool:
        """Whether no later fence existed when this call began."""
        # In this order, as fences are removed in rising order: no look can fall between two removals.
        return not self._files.exists(self._next) and self._files.exists(self.path)

    def rewrite(self, contents: bytes) -> None:
        """Replace the contents of the fence, at most one sector. Durable on return.

        Raises:
            FileNotFoundError: a later writer has removed this fence.
        """
        file = self._files.open(self.path)
        try:
            file.write_at(0, contents)
            file.sync()
        finally:
            file.close()


class EpochFiles:
    """See the module's docstring. `directory` exists."""

    __slots__ = ("_directory", "_files")

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory

    def path(self, epoch: int) -> Path:
        """The path of an epoch's fence."""
        return self._directory / f"fence-{epoch:010d}"

    def epochs(self) -> list[int]:
        """The epochs that have a fence, rising."""
        return sorted(int(found[1]) for name in self._names() if (found := _FENCE.fullmatch(name)))

    def highest(self) -> int:
        """The highest epoch that has a fence; 0 if there is none."""
        return max(self.epochs(), default=0)

    def make(self, epoch: int, contents: bytes, nonce: int) -> TakenEpoch:
        """Take exactly this epoch. Durable on return. From then on, checks of all lower epochs fail.

        `contents` is at most one sector. `nonce` has 64 random bits and is the caller's alone.

        Raises:
            EpochTaken: another process has this epoch or a higher one.
            DiskFull: no fence was made, unless an epoch was skipped. Then this one is taken, and nobody holds it.
        """
        path = self.path(epoch)
        unfinished = self._directory / f"fence-{nonce:016x}.unfinished"
        try:
            self._write(unfinished, contents)
            if self.highest() >= epoch:
                raise EpochTaken(path)
            try:
                self._files.link(unfinished, path)
            except (FileExistsError, FileNotFoundError) as lost:
                raise EpochTaken(path) from lost
        finally:
            with suppress(FileNotFoundError):
                self._files.remove(unfinished)
        found = self.epochs()
        if not found or found[-1] != epoch:
            raise EpochTaken(path)
        for missing in {lower + 1 for lower in found[:-1]}.difference(found):
            with suppress(FileExistsError):
                self._files.open(self.path(missing), create=True, exclusive=True).close()
        self._files.sync_dir(self._directory)
        return TakenEpoch(self._files, path, self.path(epoch + 1), epoch)

    def read(self, epoch: int, decode: Callable[[bytes], T]) -> T | None:
        """The decoded contents of a fence. None if it is empty, so that nobody ever held it, or if it is gone.

        Raises:
            ValueError: `decode` raised it for two equal readings. One reading may meet a `rewrite` half done.
        """
        before = None
        while True:
            try:
                file = self._files.open(self.path(epoch))
            except FileNotFoundError:
                return None
            try:
                contents = file.read_at(0, SECTOR)
            finally:
                file.close()
            if not contents.strip(b"\0"):
                return None
            try:
                return decode(contents)
            except ValueError:
                if contents == before:
                    raise
                before = contents

    def remove_below(self, epoch: int) -> None:
        """Remove the lower fences, and what other makers left unfinished. `epoch` is taken by the caller."""
        for name in self._names():
            if _UNFINISHED.fullmatch(name):
                with suppress(FileNotFoundError):
                    self._files.remove(self._directory / name)
        for lower in self.epochs():
            if lower < epoch:
                with suppress(FileNotFoundError):
                    self._files.remove(self.path(lower))

    def _names(self) -> list[str]:
        return self._files.names(self._directory)

    def _write(self, path: Path, contents: bytes) -> None:
        file = self._files.open(path, create=True, exclusive=True)
        try:
            file.write_at(0, contents)
            file.sync()
        finally:
            file.close()
