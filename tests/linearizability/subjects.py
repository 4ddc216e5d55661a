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
from random import Random
from typing import Final

import trio

from storage.metadata.cluster.roles import Role
from storage.metadata.memory import MemoryStore
from storage.metadata.store import MetadataStore
from tests.support.dying_process import Death
from tests.support.etcd import etcd_store, running_etcd
from tests.support.remote_store import RemoteStore
from tests.support.shared_stores import Brokers, brokers
from tests.support.store_process import STORE_PROGRAM, StoreProcess, store_process
from tidewire.cli.local_etcd import EtcdProcess

CLUSTER_TIMEOUT: Final = 2.0
"""The session timeout of a cluster, in seconds."""

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
    watches_fold = False
    """Whether a step of a watch may hold several change sets: a client that was away long gets a new image."""
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


class ClusterSubject(Subject):
    """Three stores on one folder, on a simulated disk. Their clients are the stores, so they outlive everything.

    Instead of a kill, the controller stands still for a while, or a follower loses its link. So another store takes
    over, and the first one goes on as a zombie, with calls and watches of its own.
    """

    outlives = True
    watches_fold = True
    calls_min = 40

    def __init__(self, them: Brokers, nursery: trio.Nursery, random: Random) -> None:
        self._them = them
        self._nursery = nursery
        self._random = random
        self._clients = 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[MetadataStore]:
        await trio.lowlevel.checkpoint()
        names = list(self._them.stores)
        self._clients += 1
        yield self._them.stores[names[self._clients % len(names)]]

    def start(self, death: Death | None = None) -> bool:
        return death is None

    def send_kill(self) -> None:
        stores = self._them.stores
        name = next((name for name, store in stores.items() if store.role is Role.LEADING), "b1")
        disturb = self._cut if self._random.random() < 0.3 else self._hold
        self._nursery.start_soon(disturb, name, self._random.uniform(0.2, 2 * CLUSTER_TIMEOUT))

    def wait(self, seconds_max: float) -> bool:
        return seconds_max > 0

    async def _hold(self, controller: str, seconds: float) -> None:
        """Hold the controller, as by SIGSTOP."""
        files = self._them.files[controller]
        files.stop()
        await trio.sleep(seconds)
        files.resume()

    async def _cut(self, controller: str, seconds: float) -> None:
        follower = self._random.choice([name for name in self._them.stores if name != controller])
        await self._them.cut(follower)
        await trio.sleep(seconds)
        self._them.mend(follower)


@asynccontextmanager
async def cluster(seed: int) -> AsyncIterator[ClusterSubject]:
    """Run three stores on one folder."""
    async with (
        brokers(seed=seed, timeout=CLUSTER_TIMEOUT, snapshot_log_bytes=SNAPSHOT_LOG_BYTES) as them,
        trio.open_nursery() as nursery,
    ):
        for name in ("b1", "b2", "b3"):
            await them.start(name)
        yield ClusterSubject(them, nursery, Random(seed))
        nursery.cancel_scope.cancel()


SUBJECTS: Final = {"embedded": embedded, "etcd": etcd}
"""By name, the subjects whose process can be killed."""
