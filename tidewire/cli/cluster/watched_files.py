"""The files of a stopped cluster, for a reader that must not wait for ever. See `tidewire.cli.cluster.silent_disk`.

Import this module after `daemon.make_importable`: it needs the daemon's packages.
"""

import os
from pathlib import Path

from storage.files import DiskFile, DiskLock, ReadOnlyFiles
from tidewire.cli.cluster.silent_disk import SilentDisk


class _WatchedFile(DiskFile):
    __slots__ = ("_disk",)

    def __init__(self, path: Path, disk: SilentDisk) -> None:
        super().__init__(path, os.O_RDONLY | os.O_CLOEXEC)
        self._disk = disk

    def size(self) -> int:
        with self._disk.touching(self.path):
            return super().size()

    def read_at(self, offset: int, length: int) -> bytes:
        with self._disk.touching(self.path):
            return super().read_at(offset, length)


class WatchedFiles(ReadOnlyFiles):
    """Says of each operation that reads what it touches."""

    def __init__(self, disk: SilentDisk) -> None:
        super().__init__()
        self._disk = disk

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> DiskFile:
        """See `ReadOnlyFiles`."""
        if create or exclusive:
            return super().open(path, create=create, exclusive=exclusive)
        with self._disk.touching(path):
            return _WatchedFile(path, self._disk)

    def names(self, directory: Path) -> list[str]:
        """See `Files`."""
        with self._disk.touching(directory):
            return super().names(directory)

    def exists(self, path: Path) -> bool:
        """See `Files`."""
        with self._disk.touching(path):
            return super().exists(path)

    def lock(self, path: Path, *, shared: bool = False) -> DiskLock:
        """See `ReadOnlyFiles`."""
        with self._disk.touching(path):
            return super().lock(path, shared=shared)
