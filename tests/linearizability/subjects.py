"""What is judged: a metadata store whose process can be killed, whichever store it is.

The harness knows a store by three things: how to start and kill its process, how a client reaches it, and whether a
client and its watches outlive the process (`outlives`): a client of etcd does, and goes on by itself; one of the
embedded store is part of the broker and dies with it, which a new connection stands for.
"""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from tests.support.dying_process import Death
from tests.support.remote_store import RemoteStore
from tests.support.store_process import StoreProcess, store_process

SNAPSHOT_LOG_BYTES: Final = 64 * 1024
"""Small, so that kills meet snapshots and the trimming of the log too."""


class Subject(ABC):
    """See the module's docstring."""

    outlives = False
    """Whether a client goes on over a kill."""
    takes_deaths = False
    """Whether the process can kill itself at a write to the disk."""
    has_barrier = False
    """Whether a read of what other clients wrote waits for a barrier first."""
    change_set_operations_max = 10_000
    """How many operations a change set may have."""

    @abstractmethod
    def client(self) -> AbstractAsyncContextManager[MetadataStore]:
        """A client; the process is up, or was until a moment ago.

        Raises:
            StoreUnavailable: it is not.
        """

    @abstractmethod
    def start(self, death: Death | None = None) -> bool:
        """Start the process on the data of before, and wait until it answers; False: it killed itself. Blocks."""

    @abstractmethod
    def send_kill(self) -> None:
        """Kill -9, without waiting."""

    @abstractmethod
    def wait(self, seconds_max: float) -> bool:
        """Wait until it is gone; False: it still runs. Blocks."""


class MemorySubject(Subject):
    """The store in memory: nothing to kill, but calls of many clients."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[MetadataStore]:
        await trio.lowlevel.checkpoint()
        yield self._store

    def start(self, death: Death | None = None) -> bool:
        return death is None

    def send_kill(self) -> None:
        raise NotImplementedError("nothing to kill")

    def wait(self, seconds_max: float) -> bool:
        raise NotImplementedError(f"nothing to wait for, be it {seconds_max} seconds")


class EmbeddedSubject(Subject):
    """The embedded store in a process of its own."""

    takes_deaths = True

    def __init__(self, process: StoreProcess) -> None:
        self._process = process

    def client(self) -> AbstractAsyncContextManager[MetadataStore]:
        return RemoteStore.connect(self._process.address)

    def start(self, death: Death | None = None) -> bool:
        return self._process.start(death)

    def send_kill(self) -> None:
        self._process.send_kill()

    def wait(self, seconds_max: float) -> bool:
        return self._process.wait(seconds_max)


@contextmanager
def embedded(folder: Path) -> Iterator[Subject]:
    """The embedded store on `folder`."""
    with store_process(folder / "data", snapshot_log_bytes=SNAPSHOT_LOG_BYTES) as process:
        yield EmbeddedSubject(process)
