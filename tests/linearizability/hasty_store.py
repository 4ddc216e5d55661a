"""The embedded store on a disk that confirms too early: a program for tests/support/store_process.py.

An answered write reaches the disk a few milliseconds later, unless the process is killed meanwhile. A harness that does
not detect this would not detect a store without its sync, either.
"""

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar, TypeVarTuple

from storage.files import DiskFile, DiskFiles
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import MetadataStore
from tests.support.store_process import main as serve

DELAY_SECONDS: Final = 0.02

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Write = tuple["HastyFile", int, bytes]


class HastyFile(DiskFile):
    """Hands its writes to `later` while that is given."""

    __slots__ = ("later",)

    def __init__(self, path: Path, flags: int) -> None:
        super().__init__(path, flags)
        self.later: SimpleQueue[Write] | None = None

    def write_at(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        if self.later is None:
            super().write_at(offset, data)
        else:
            self.later.put((self, offset, bytes(data)))

    def write_late(self, offset: int, data: bytes) -> None:
        super().write_at(offset, data)


class HastyFiles(DiskFiles):
    """Writes later, and in order, what urgent operations write."""

    def __init__(self) -> None:
        super().__init__()
        self._later: SimpleQueue[Write] = SimpleQueue()
        self._files: list[HastyFile] = []
        threading.Thread(target=self._do_later, daemon=True).start()

    def open(self, path: Path, *, create: bool = False, exclusive: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0) | (os.O_EXCL if exclusive else 0)
        file = HastyFile(path, flags)
        self._files.append(file)
        return file

    async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        for file in self._files:
            file.later = self._later
        return await super().run_urgent(call, *args)

    def _do_later(self) -> None:
        while True:
            file, offset, data = self._later.get()
            threading.Event().wait(DELAY_SECONDS)
            file.write_late(offset, data)


@asynccontextmanager
async def open_hasty(data_dir: Path, snapshot_log_bytes: int) -> AsyncIterator[MetadataStore]:
    # No snapshots: they would follow a log that is not written yet.
    async with EmbeddedStore.open(HastyFiles(), data_dir, snapshot_log_bytes=2**40 + snapshot_log_bytes) as store:
        yield store


def main() -> None:
    """Serve the store."""
    serve(open_hasty)
