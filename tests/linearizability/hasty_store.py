"""The embedded store on a disk that confirms too early: a program for tests/support/store_process.py.

An answered write reaches the disk a few milliseconds later, unless the process is killed meanwhile. A harness that does
not detect this would not detect a store without its sync, either.
"""

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar, TypeVarTuple, cast

import trio

from storage.files import DiskFiles
from storage.metadata.embedded import EmbeddedStore
from storage.metadata.store import MetadataStore
from tests.support.store_process import main as serve

DELAY_SECONDS: Final = 0.02

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class HastyFiles(DiskFiles):
    """Delays urgent operations, in order."""

    def __init__(self) -> None:
        super().__init__()
        self._later: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        threading.Thread(target=self._do_later, daemon=True).start()

    async def run_urgent(self, call: Callable[[*Ts], T], *args: *Ts) -> T:
        await trio.lowlevel.checkpoint()
        self._later.put((call, args))
        return cast("T", None)

    def _do_later(self) -> None:
        while True:
            call, args = self._later.get()
            threading.Event().wait(DELAY_SECONDS)
            call(*args)


@asynccontextmanager
async def open_hasty(data_dir: Path, snapshot_log_bytes: int) -> AsyncIterator[MetadataStore]:
    # No snapshots: they would read where the log stands, and here it stands elsewhere.
    async with EmbeddedStore.open(HastyFiles(), data_dir, snapshot_log_bytes=2**40 + snapshot_log_bytes) as store:
        yield store


def main() -> None:
    """Serve the store."""
    serve(open_hasty)
