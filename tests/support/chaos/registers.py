"""Clients of the metadata store itself, on the cluster's own store and through its faulty networks.

They make concurrent calls on few keys: compare-and-set, deletions, change sets of several records, scans, queries.
Watches follow. Porcupine judges the history (tests/linearizability).
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Final

import trio

from storage.files import DiskFiles
from storage.metadata.cluster.playing import LOOK_SECONDS, Participant, RolePlayer
from storage.metadata.cluster.roles import RoleEvent
from storage.metadata.cluster.shared_store import SharedStore
from storage.metadata.etcd.store import EtcdStore
from storage.metadata.store import MetadataStore
from tests.linearizability.harness import Report, run
from tests.linearizability.subjects import Subject
from tests.support.chaos.acts import Store
from tests.support.chaos.cluster import SESSION_SECONDS, Cluster
from tests.support.chaos.network import NOWHERE
from tests.support.chaos.witnesses import HEAL_SECONDS_MAX, Segments
from tests.support.dying_process import Death
from tests.support.proxy import dial

ROOT: Final = "/chaos-registers"
PAUSE_SECONDS: Final = 0.05
"""The pause of each client behind a call: the calls must not be a load for the machine."""
CATCH_UP_SECONDS_MAX: Final = 30.0
GOES_ON_CALLS: Final = 20
JUDGE_SECONDS_MAX: Final = 900.0
"""For the judgement of some 250,000 calls, which an hour makes, on a busy machine."""


class _Subject(Subject):
    """The cluster's store, which the schedule kills. Each client goes the ways of another broker."""

    outlives = True

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._clients = 0

    @asynccontextmanager
    async def client(self) -> AsyncIterator[MetadataStore]:
        self._clients += 1
        names = list(self._cluster.brokers)
        async with self._open(names[self._clients % len(names)], self._clients) as store:
            yield store

    @abstractmethod
    def _open(self, name: str, number: int) -> AbstractAsyncContextManager[MetadataStore]:
        """Open a client that goes the ways of this broker."""

    def start(self, death: Death | None = None) -> bool:
        return death is None

    def send_kill(self) -> None:
        raise NotImplementedError("the schedule kills")

    def wait(self, seconds_max: float) -> bool:
        raise NotImplementedError(f"nothing to wait for, be it {seconds_max} seconds")


class _Etcd(_Subject):
    """The cluster's etcd."""

    shares_revisions = True
    change_set_operations_max = 120

    def _open(self, name: str, number: int) -> AbstractAsyncContextManager[MetadataStore]:
        ways = [proxy.endpoint for (start, _end), proxy in self._cluster.network.store.items() if start == name]
        return EtcdStore.open(ways, root=ROOT)


class _NeverLeads(RolePlayer):
    """It lets the brokers take over."""

    async def _listen(self, listeners: Sequence[trio.abc.Listener[trio.abc.Stream]]) -> None:
        assert not listeners, "nobody follows it"
        await trio.lowlevel.checkpoint()

    async def _take_over(self) -> None:
        await trio.sleep(LOOK_SECONDS)
        self._move(RoleEvent.NEWER_FENCE)


class _Onlooker(SharedStore):
    """A follower of the brokers' store."""

    def __init__(self, participant: Participant) -> None:
        super().__init__(participant)
        self.player = _NeverLeads(participant, self._following, self._image, show=self.show, end=self._end)


class _Followers(_Subject):
    """The embedded store of the brokers."""

    watches_fold = True

    def _open(self, name: str, number: int) -> AbstractAsyncContextManager[MetadataStore]:
        async def connect(address: str) -> trio.abc.Stream:
            return await dial(self._cluster.network.routes(name).get(address, address))

        return _Onlooker.open_shared(
            DiskFiles(),
            self._cluster.data_dir,
            [],
            broker=f"onlooker-{number}",
            address=NOWHERE,
            connect=connect,
            timeout=SESSION_SECONDS,
            random=Random(number),
        )


class Registers:
    """See the module's docstring."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.name = "metadata"
        self.scalable: Sequence[str] = ()
        self.heal_seconds_max = HEAL_SECONDS_MAX
        self.finish_seconds_max = JUDGE_SECONDS_MAX
        self.regular: Sequence[str] = ()
        self._folder = folder
        self._seed = seed
        self._subject: Subject
        self._report: Report | None = None
        self._stop = trio.Event()
        self._stopped = trio.Event()

    async def open(self, cluster: Cluster, stack: AsyncExitStack) -> None:
        """See `Witness.open`."""
        self._subject = _Etcd(cluster) if cluster.store is Store.ETCD else _Followers(cluster)

    def begin(self, nursery: trio.Nursery) -> None:
        """See `Witness.begin`."""
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        self._report = await run(
            self._subject,
            seed=self._seed,
            until=self._stop,
            pause_seconds=PAUSE_SECONDS,
            catch_up_seconds_max=CATCH_UP_SECONDS_MAX,
        )
        self._stopped.set()

    def broker_died(self, random: Random) -> None:
        """See `Witness.broker_died`. Its clients outlive brokers."""

    async def goes_on(self) -> None:
        """See `Witness.goes_on`. The judge reads everything in the end, which needs a store that serves."""

    async def finish(self, segments: Segments) -> list[str]:
        """See `Witness.finish`."""
        self._stop.set()
        await self._stopped.wait()
        assert self._report is not None, "it has ended"
        report = self._report
        if report.complaints:
            (self._folder / "metadata-history.jsonl").write_bytes(report.with_watches().lines())
        return report.complaints

    def waits_for(self) -> str:
        """See `Witness.waits_for`."""
        return "the store's answers"

    async def read_again(self, url: str) -> list[str]:
        """See `Witness.read_again`."""
        return []

    def summary(self) -> str:
        """See `Witness.summary`."""
        return str(self._report)
