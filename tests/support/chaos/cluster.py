"""Three broker processes, the processes of their store, and the networks between all of them.

    async with running(folder, Store.ETCD, logbook) as cluster:
        cluster.url()
        await cluster.kill("one")          # see `real_cluster`
        await cluster.start("one")
        name = await cluster.resolve("controller")

A broker that ends by itself is started again, as a supervisor would do it. That is a complaint, unless the broker was
stopped (SIGSTOP) before: then another broker has fenced it, and it must end.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, Final, TypeVar

import trio

from scripts.need import place
from tests.support.chaos.acts import BROKERS, CONTROLLER, COORDINATOR, FOLLOWER, LEADER, OWNER, Store
from tests.support.chaos.logbook import Logbook
from tests.support.chaos.network import Network
from tests.support.etcd_nodes import EtcdNodes
from tests.support.happenings import Happenings
from tests.support.http import Answer, request
from tests.support.layout_changes import GONE, LayoutChanges
from tests.support.outcomes import RETENTION_SECONDS
from tests.support.processes import RunningBroker
from tests.support.real_cluster import RealCluster
from tidewire.cli.local_etcd import free_port

SESSION_SECONDS: Final = 8
"""The timeout of the brokers' sessions. Some acts are longer, most are shorter."""
RETRY_SECONDS: Final = 0.5
OK: Final = 200
REQUEST_SECONDS_MAX: Final = 90.0
"""How long a request for administration may take. The broker's own limits are shorter."""
LOG_LINES: Final = 15
"""How many last lines of a broker's log a complaint has."""

T = TypeVar("T")


class Cluster(RealCluster):
    """See the module's docstring; made by `running`."""

    def __init__(self, folder: Path, store: Store, logbook: Logbook, nursery: trio.Nursery) -> None:
        super().__init__(folder / "data", {})
        self.store = store
        self.network = Network()
        self.etcd: EtcdNodes | None = None
        self.logbook = logbook
        self.on_death: list[Callable[[Random], None]] = []
        """To be called when a broker was killed."""
        self.folder = folder
        """Has the logs of everything."""
        self._nursery = nursery
        self._expected: set[str] = set()
        """Brokers whose end is expected, because it was asked for."""
        self._stopped: set[str] = set()
        """Brokers that were stopped (SIGSTOP) in their present life."""
        self._is_over = False

    def url(self, first: int = 0) -> str:
        """See `RealCluster.url`. Clients reach the brokers through proxies."""
        addresses = [proxy.endpoint for proxy in self.network.clients.values()]
        return "pulsar://" + ",".join(addresses[first:] + addresses[:first])

    @property
    def kafka(self) -> str:
        """The addresses of all brokers for Kafka's clients, which reach them through proxies."""
        return ",".join(proxy.endpoint for proxy in self.network.kafka.values())

    async def open(self, stack: AsyncExitStack) -> None:
        """Start everything."""
        members: Mapping[str, str] = {}
        if self.store is Store.ETCD:
            self.etcd = EtcdNodes(self.folder / "etcd", str(place("etcd")))
            stack.callback(self.etcd.__exit__, None, None, None)
            await trio.to_thread.run_sync(self.etcd.start)
            members = self.etcd.endpoints
        await self.network.open(self._nursery, BROKERS, members)
        config = self.folder / "broker.toml"
        config.write_text(
            f'cluster = "{self.folder.name}"\ntxn_retention_seconds = {RETENTION_SECONDS}\ndeduplication = true\n'
            f"session_timeout_seconds = {SESSION_SECONDS}\nconsumer_session_grace_seconds = 2\n"
            # Small files, so that ledgers roll and journal files are freed too.
            'journal_file_bytes_max = "1MiB"\nledger_bytes_max = "1MiB"\n',
            encoding="utf-8",
        )
        stack.callback(self._kill_all)
        for name in BROKERS:
            self.brokers[name] = self._made(name, config)
        await self.start(*BROKERS)

    def _made(self, name: str, config: Path) -> RunningBroker:
        routes = self._routes(name)
        self.network.write_routes(routes, name)
        flags = ["--config", str(config), "--broker-id", name]
        flags += ["--advertised-pulsar", self.network.clients[name].endpoint]
        flags += ["--advertised-kafka", self.network.kafka[name].endpoint]
        if self.store is Store.ETCD:
            ways = [proxy.endpoint for (start, _end), proxy in self.network.store.items() if start == name]
            flags += ["--metadata", "etcd://" + ",".join(ways)]
        else:
            internal = f"127.0.0.1:{free_port()}"
            flags += ["--internal", internal]
            for (_start, end), proxy in self.network.store.items():
                if end == name:
                    proxy.server = internal
        command = (sys.executable, "-m", "tests.support.routed_broker", str(routes), "broker")
        log = self.folder / f"{name}.log"
        return RunningBroker(self.data_dir, [*flags, "--verbose"], command, stderr_path=log)

    def _routes(self, name: str) -> Path:
        return self.folder / f"{name}.routes"

    # ------------------------------------------------------------------------------------------------------- processes

    async def start(self, *names: str) -> None:
        """See `RealCluster.start`. Networks then lead to the brokers' addresses."""
        await super().start(*names)
        self._stopped.difference_update(names)
        self._expected.difference_update(names)
        for name in names:
            broker = self[name]
            self.network.clients[name].server = str(broker.pulsar)
            self.network.kafka[name].server = str(broker.kafka)
            for (_start, end), proxy in self.network.peers.items():
                if end == name:
                    proxy.server = str(broker.http)
            self._nursery.start_soon(self._watch, name, broker.pid)
        for name in self.brokers:
            self.network.write_routes(self._routes(name), name)

    async def kill(self, name: str) -> None:
        """See `RealCluster.kill`."""
        self._expected.add(name)
        await super().kill(name)

    async def stop(self, *names: str) -> None:
        """See `RealCluster.stop`."""
        self._expected.update(names)
        await super().stop(*names)

    def freeze(self, name: str) -> None:
        """See `RealCluster.freeze`."""
        self._stopped.add(name)
        super().freeze(name)

    def is_running(self, name: str) -> bool:
        """Whether the broker runs, and nobody is about to end it. It may be frozen."""
        return self[name].is_running and name not in self._expected

    async def _watch(self, name: str, pid: int) -> None:
        """Start the broker again if it ends by itself."""
        descriptor = os.pidfd_open(pid)
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)
        if name in self._expected or self._is_over:
            return
        broker = self[name]
        status = await _aside(broker.process.wait)
        text = f"{name} ended by itself with status {status}"
        if name in self._stopped:
            self.logbook.say(f"{text}, after it was stopped")
        else:
            last = "\n".join(broker.stderr.splitlines()[-LOG_LINES:])
            self.logbook.complain(f"{text}:\n{last}")
        self._expected.add(name)
        broker.kill()
        await self.start(name)

    def _kill_all(self) -> None:
        self._is_over = True
        for broker in self.brokers.values():
            broker.close()

    # ---------------------------------------------------------------------------------------------------- who does what

    async def resolve(self, victim: str, random: Random) -> str | None:
        """Return the broker, or the member of etcd, that this is about; None if nobody knows at the moment."""
        if victim in BROKERS:
            return victim
        if victim in {LEADER, FOLLOWER} and self.etcd is not None:
            leader = await _aside(self.etcd.leader)
            others = [name for name in self.etcd.nodes if name != leader]
            return leader if victim == LEADER else random.choice(others)
        if victim == LEADER:
            return self.metadata_controller().broker
        kinds = {OWNER: ("segments", "topics"), CONTROLLER: ("controllers",), COORDINATOR: ("coordinators",)}[victim]
        view = await self.view()
        if view is None:
            return None
        claims = {one["broker"]: sum(one["claims"][kind] for kind in kinds) for one in view["brokers"]}
        return max(claims, key=lambda name: (claims[name], name), default=None)

    async def view(self) -> dict[str, Any] | None:
        """Return the cluster as the first broker that answers sees it."""
        for name in filter(self.is_running, self.answering):
            with trio.move_on_after(SESSION_SECONDS):
                answer = await self.ask("GET", "/admin/v2/cluster", first=name)
                if answer is not None and answer.status == 200:
                    view: dict[str, Any] = answer.json
                    return view
        return None

    async def ask_any(self, path: str) -> Answer | None:
        """Ask each broker, until one answers with what was asked for. Without any, return None a moment later."""
        for name in filter(self.is_running, self.answering):
            answer = await self.ask("GET", path, first=name)
            if answer is not None and answer.status == OK:
                return answer
        await trio.sleep(RETRY_SECONDS)
        return None

    async def ask(self, method: str, path: str, body: bytes = b"", *, first: str | None = None) -> Answer | None:
        """Ask a running broker. Return None if it was gone before it answered."""
        name = first or next(filter(self.is_running, self.answering), BROKERS[0])
        with trio.move_on_after(REQUEST_SECONDS_MAX):
            try:
                return await request(self[name].http, method, path, body=body)
            except GONE:
                return None
        if name not in self._stopped:
            self.logbook.complain(f"{name} did not answer {method} {path} within {REQUEST_SECONDS_MAX:.0f} s")
        return None

    def layout_changes(self) -> LayoutChanges:
        """Ask a running broker for layouts."""
        return LayoutChanges(self.any.http, Happenings())


@asynccontextmanager
async def running(folder: Path, store: Store, logbook: Logbook) -> AsyncIterator[Cluster]:
    """Run a cluster with its files in `folder`. All its processes are killed in the end."""
    async with AsyncExitStack() as stack:
        nursery = await stack.enter_async_context(trio.open_nursery())
        cluster = Cluster(folder, store, logbook, nursery)
        await cluster.open(stack)
        yield cluster
        cluster._is_over = True
        nursery.cancel_scope.cancel()


async def _aside(call: Callable[[], T]) -> T:
    """Run a blocking call in a thread, to its end, whatever is cancelled."""
    return await trio.to_thread.run_sync(call)
