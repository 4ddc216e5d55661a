"""The judged metadata stores, whose processes can be killed.

The harness knows three things of a store: how to start and kill its process, how a client reaches it, and whether a
client and its watches outlive the process (`outlives`). A client of etcd does, and continues by itself. A client of the
embedded store is part of the broker and dies with it; a new connection stands for that.
"""

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import trio

from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from tests.support.dying_process import Death
from tests.support.etcd import etcd_store, running_etcd
from tests.support.remote_store import RemoteStore
from tests.support.store_process import STORE_PROGRAM, StoreProcess, store_process
from tidewire.cli.local_etcd import EtcdProcess

SNAPSHOT_LOG_BYTES: Final = 64 * 1024
"""Small, so that kills meet snapshots and the trimming of the log too."""


class Subject(ABC):
    """See the module's docstring."""

    outlives = False
    """Whether a client goes on over a kill."""
    calls_min = 1
    """How many calls a life has at least; more where a start takes long."""
    takes_deaths = False
    """Whether the process can kill itself at a write to the disk."""
    shares_revisions = False
    """Whether change sets that were made at the same time and touch different keys may have one revision."""
    change_set_operations_max = 10_000
    """How many operations a change set may have."""

    @abstractmethod
    def client(self) -> AbstractAsyncContextManager[MetadataStore]:
        """Open a client; the process runs, or ran until a moment ago.

        Raises:
            StoreUnavailable: the process is down.
        """

    @abstractmethod
    def start(self, death: Death | None = None) -> bool:
        """Start the process on the existing data, and wait for its answer. Return False if it killed itself. Blocks."""

    @abstractmethod
    def send_kill(self) -> None:
        """Send kill -9, without waiting."""

    @abstractmethod
    def wait(self, seconds_max: float) -> bool:
        """Wait until it is gone. Return False if it still runs. Blocks."""


class MemorySubject(Subject):
    """The store in memory: nothing to kill, but calls of many clients."""

    def __init__(self, store: MetadataStore | None = None) -> None:
        """Set up. `store` is used instead of the memory store."""
        self._store = store or MemoryStore()

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
    """The embedded store in a separate process."""

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
def embedded(folder: Path, program: str = STORE_PROGRAM) -> Iterator[Subject]:
    """Run the embedded store on `folder`. `program` is the module whose `main` serves it."""
    with store_process(folder / "data", snapshot_log_bytes=SNAPSHOT_LOG_BYTES, program=program) as process:
        yield EmbeddedSubject(process)


class EtcdSubject(Subject):
    """A real etcd. Its clients are separate stores in this process, and do not die with it."""

    outlives = True
    shares_revisions = True
    calls_min = 40
    change_set_operations_max = 120

    def __init__(self, process: EtcdProcess) -> None:
        self._process = process

    def client(self) -> AbstractAsyncContextManager[MetadataStore]:
        return etcd_store(self._process.endpoint, root="/judged")

    def start(self, death: Death | None = None) -> bool:
        assert death is None
        self._process.start()
        return True

    def send_kill(self) -> None:
        os.kill(self._process.pid, signal.SIGKILL)

    def wait(self, seconds_max: float) -> bool:
        # It was killed, so this only waits, and has a bound of its own.
        self._process.kill()
        return seconds_max > 0


@contextmanager
def etcd(folder: Path) -> Iterator[Subject]:
    """Run a store on a new etcd with its data in `folder`."""
    with running_etcd(folder) as process:
        process.stop()
        yield EtcdSubject(process)


SUBJECTS: Final = {"embedded": embedded, "etcd": etcd}
"""By name, the subjects whose process can be killed."""
