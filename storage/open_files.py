"""Open descriptors, bounded: thousands of ledgers share a few hundred.

A file is opened when it is needed. The least recently used file is closed. A file that was written to is synced before
it is closed, because the operating system reports a failed write-back only to descriptors that were open.

Everything here blocks. Several worker threads call it at once.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from storage.errors import fresh
from storage.files import File, Files

DESCRIPTORS_MAX: Final = 256
"""Ledger files that may be open at once, besides those in use at the moment."""


class _Slot:
    __slots__ = ("file", "is_dropped", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_dropped = False

    def drop(self) -> None:
        """Close it now, or when its last user is done.

        The number of a closed descriptor may already belong to another file.
        """
        self.is_dropped = True
        if not self.users:
            self.file.close()


class OpenFiles:
    """Files by path."""

    def __init__(self, files: Files, *, descriptors_max: int = DESCRIPTORS_MAX) -> None:
        self._files = files
        self._descriptors_max = descriptors_max
        self._guard = threading.Lock()
        self._slots: OrderedDict[Path, _Slot] = OrderedDict()
        self._unsynced: set[Path] = set()
        self._failure: OSError | None = None

    def __len__(self) -> int:
        return len(self._slots)

    @contextmanager
    def use(self, path: Path) -> Iterator[File]:
        """The open file. It stays open at least as long as the context.

        Raises:
            FileNotFoundError: it is absent.
        """
        with self._guard:
            slot = self._slots.get(path)
            if slot is None:
                slot = self._slots[path] = _Slot(self._open(path))
            self._slots.move_to_end(path)
            slot.users += 1
            self._close_unused()
        try:
            yield slot.file
        finally:
            with self._guard:
                slot.users -= 1
                if slot.is_dropped:
                    slot.drop()

    def write(self, path: Path, offset: int, pieces: Sequence[bytes]) -> None:
        """Write to the file. `sync` makes the bytes durable.

        Raises:
            FileNotFoundError: it is absent. A write never makes a file, because a later owner may have removed it.
        """
        with self.use(path) as file:
            with self._guard:
                self._unsynced.add(path)
            file.write_pieces_at(offset, pieces)

    def sync(self, path: Path) -> None:
        """Return once every earlier `write` to this file is durable, if the file was not removed.

        Raises:
            OSError: it is not durable, or an earlier sync of some file failed when it was closed.
        """
        with self._guard:
            if self._failure is not None:
                raise fresh(self._failure)
            is_unsynced = path in self._unsynced
            self._unsynced.discard(path)
        if is_unsynced:
            # If it was removed, there is nothing to keep.
            with suppress(FileNotFoundError), self.use(path) as file:
                file.sync()

    def forget(self, path: Path) -> None:
        """Close the file without a sync, if it is open, because it is about to be removed."""
        with self._guard:
            slot = self._slots.pop(path, None)
            self._unsynced.discard(path)
            if slot is not None:
                slot.drop()

    def close(self) -> None:
        """Close everything. Syncs nothing, because unsynced bytes are in the journal."""
        with self._guard:
            for slot in self._slots.values():
                slot.drop()
            self._slots.clear()

    def _open(self, path: Path) -> File:
        try:
            return self._files.open(path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        # Other code took the descriptors meant for ledgers. Close those that are not in use.
        self._close_unused(down_to=0)
        return self._files.open(path)

    def _close_unused(self, down_to: int | None = None) -> None:
        excess = len(self._slots) - (self._descriptors_max if down_to is None else down_to)
        if excess <= 0:
            return
        for path in [path for path, slot in self._slots.items() if not slot.users][:excess]:
            file = self._slots.pop(path).file
            if path in self._unsynced:
                self._unsynced.discard(path)
                try:
                    file.sync()
                except OSError as failed:
                    # The next `sync` raises it. The caller that opens a file here did not write this one.
                    self._failure = failed
            file.close()
