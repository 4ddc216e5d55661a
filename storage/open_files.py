"""Open descriptors, bounded: thousands of ledgers share a few hundred.

A file is opened when it is needed and closed when it was not used for the longest time. One that was written to is
synced before it is closed, because the operating system reports a failed write-back only to descriptors that were open.

Everything here blocks and is called from worker threads, several at once.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from storage.files import File, Files

DESCRIPTORS_MAX: Final = 256
"""Ledger files open at once, beyond those in use at the moment."""


class _Slot:
    __slots__ = ("file", "is_dropped", "users")

    def __init__(self, file: File) -> None:
        self.file = file
        self.users = 0
        self.is_dropped = False

    def drop(self) -> None:
        """Close it now, or when its last user is done: a closed number may already be another file's."""
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
    def use(self, path: Path, *, create: bool = False) -> Iterator[File]:
        """The open file, kept open at least while the context is.

        Raises:
            FileNotFoundError: it is absent and `create` is False.
        """
        with self._guard:
            slot = self._slots.get(path)
            if slot is None:
                slot = self._slots[path] = _Slot(self._open(path, create=create))
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

    def write(self, path: Path, offset: int, data: bytes) -> None:
        """Write to the file, made if absent; `sync` makes it durable."""
        with self.use(path, create=True) as file:
            with self._guard:
                self._unsynced.add(path)
            file.write_at(offset, data)

    def sync(self, path: Path) -> None:
        """Return once every `write` to this file before is durable.

        Raises:
            OSError: it is not, or that of a file that was closed in between could not be made so.
        """
        with self._guard:
            if self._failure is not None:
                raise self._failure
            is_unsynced = path in self._unsynced
            self._unsynced.discard(path)
        if is_unsynced:
            with self.use(path) as file:
                file.sync()

    def forget(self, path: Path) -> None:
        """Close the file unsynced, if it is open: it is about to be removed."""
        with self._guard:
            slot = self._slots.pop(path, None)
            self._unsynced.discard(path)
            if slot is not None:
                slot.drop()

    def close(self) -> None:
        """Close everything. Syncs nothing: what is not synced yet is in the journal."""
        with self._guard:
            for slot in self._slots.values():
                slot.drop()
            self._slots.clear()

    def _open(self, path: Path, *, create: bool) -> File:
        try:
            return self._files.open(path, create=create)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
        # Others took the descriptors meant for ledgers: give back those that are not needed at the moment.
        self._close_unused(down_to=0)
        return self._files.open(path, create=create)

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
                    # Raised by the next `sync`: whoever happens to open a file here is not who wrote this one.
                    self._failure = failed
            file.close()
