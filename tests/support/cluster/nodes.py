"""The processes of a simulated cluster, each with the store's own code, and the lines that they say.

    trio.run(main, clock=MockClock(autojump_threshold=0), instruments=[Stopping()])

    async def main() -> None:
        async with Cluster.open(seed=1) as cluster:
            cluster.start("b1")
            await trio.sleep(0.1)
            print(cluster.heard())

A process that is killed makes no step more. Its tasks are undone when the cluster closes.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Self

import structlog
import trio
from structlog.typing import EventDict, WrappedLogger

from storage.files import DiskFull
from storage.metadata.cluster.reign_snapshots import SNAPSHOT_LOG_BYTES
from storage.metadata.cluster.roles import Role
from storage.metadata.cluster.shared_store import SharedStore
from storage.metadata.store import Session
from tests.support.cluster.disk_of_process import ProcessFiles
from tests.support.cluster.history import History, Watched
from tests.support.cluster.network import Network
from tests.support.cluster.stopping import PROCESS, Process
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DATA, DIRECTORY

TIMEOUT: Final = 3.0
"""The session timeout of a simulated cluster, in seconds."""

SHOWN_SECONDS_MIN: Final = 0.1
"""Lines that come later say when."""


class Node(Process):
    """One process, from its start to its end."""

    def __init__(self, cluster: "Cluster", name: str, seed: int) -> None:
        super().__init__()
        self.name = name
        self.files = ProcessFiles(cluster.disk, self, Random(seed))
        self.files.before = partial(cluster.keep_removed, self.files)
        self.store: SharedStore | None = None
        """None before it is open."""
        self.clients: trio.Nursery | None = None
        """Where its clients run; None while the store is not open."""
        self.sessions: dict[str, Session] = {}
        """The sessions of its clients, by the names that the story gives them."""
        self.has_ended = False
        self._cluster = cluster
        self._random = Random(seed)
        self._listener = cluster.network.listen(name)
        self._scope = trio.CancelScope()
        self._closing = trio.Event()

    @property
    def is_leading(self) -> bool:
        """Whether it believes to be the controller."""
        return self.store is not None and self.store.role is Role.LEADING

    def say(self, text: str) -> None:
        """Add a line of this process."""
        self._cluster.say(self.name, text)

    async def live(self) -> None:
        """The process."""
        cluster = self._cluster
        try:
            with self._scope:
                async with SharedStore.open_shared(
                    self.files,
                    DATA,
                    [self._listener],
                    broker=self.name,
                    address=self.name,
                    connect=partial(cluster.network.connect, self.name),
                    timeout=TIMEOUT,
                    random=self._random,
                    snapshot_log_bytes=cluster.snapshot_log_bytes,
                ) as self.store:
                    self.say("the store is open")
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._until_ended)
                        self.clients = nursery
                        await self._closing.wait()
                        self.clients = None
                        nursery.cancel_scope.cancel()
        except Exception as error:
            if not self.has_ended:
                self.say(f"the store has ended: {_leaf(error)}")
                # A start on a full disk is refused.
                is_refused_start = self.store is None and isinstance(_leaf(error), DiskFull)
                if not is_refused_start:
                    cluster.history.complaints.append(f"{self.name}'s store has ended: {_leaf(error)}")
        if not self.has_ended:
            self.say("the process ends")
            cluster.network.forget(self.name)
            self.files.end()
            cluster.ended(self)

    def close(self) -> None:
        """Let it stop as a broker does. It ends its sessions itself."""
        self._cluster.history.owner_leaves(self.name)
        self._closing.set()

    def stop(self) -> None:
        """See `Process.stop`."""
        self._cluster.history.disturbed(self.name)
        super().stop()

    def kill(self) -> None:
        """End it as by SIGKILL."""
        if not self.has_ended:
            self.stop()
            self.files.end()
            self._cluster.network.forget(self.name)
            self._cluster.ended(self)

    def undo(self) -> None:
        """Undo the tasks of a process that was killed."""
        self.go_on()
        self._scope.cancel()

    async def _until_ended(self) -> None:
        assert self.store is not None, "it is open"
        while self.store.role is not Role.ENDED:
            await self.store.player.moved.park()
        self.clients = None
        assert self.store._failure is not None, "it says why it has ended"
        raise self.store._failure


class Cluster:
    """See the module's docstring."""

    def __init__(self, nursery: trio.Nursery, seed: int) -> None:
        self.disk = SimulatedFiles(seed=seed)
        self.network = Network(Random(seed))
        self.history = History()
        self.nodes: dict[str, Node] = {}
        """The processes that live, stopped ones too."""
        self.removed: dict[str, bytes] = {}
        """The log files that the processes have removed, and what was in them."""
        self.snapshot_log_bytes = SNAPSHOT_LOG_BYTES
        """How long the log gets before a snapshot is due."""
        self.disturb: Callable[[Node], None] = lambda _node: None
        """Called with each new process."""
        self.epochs_due = 0
        """For how many epochs there was a reason."""
        self._dead: list[Node] = []
        self._lines: list[tuple[float, str, str]] = []
        self._heard_at = trio.current_time()
        self._nursery = nursery
        self._random = Random(seed)

    @classmethod
    @asynccontextmanager
    async def open(cls, *, seed: int = 1) -> AsyncIterator[Self]:
        """A cluster without processes. Leaving the context kills all that live."""
        before = structlog.get_config()["processors"]
        try:
            async with trio.open_nursery() as nursery:
                cluster = cls(nursery, seed)
                structlog.configure(processors=[cluster._heard_from])
                try:
                    yield cluster
                finally:
                    for node in list(cluster.nodes.values()):
                        node.kill()
                    for node in cluster._dead:
                        node.undo()
        finally:
            structlog.configure(processors=before)

    # -- processes

    def start(self, name: str) -> None:
        """Start a process."""
        assert name not in self.nodes, f"{name} runs already"
        node = self.nodes[name] = Node(self, name, self._random.getrandbits(32))
        self.disturb(node)
        self.epochs_due += 1
        node.start_soon(self._nursery, node.live)

    def leader(self) -> str | None:
        """The process that leads, or believes so."""
        return next((name for name, node in self.nodes.items() if node.is_leading), None)

    def ended(self, node: Node) -> None:
        """A process has ended."""
        node.has_ended = True
        del self.nodes[node.name]
        self._dead.append(node)
        self.epochs_due += 1
        self.history.owner_leaves(node.name)

    def lose_power(self) -> None:
        """End all processes, and lose what was not synced."""
        for node in list(self.nodes.values()):
            node.kill()
        self.disk = self.disk.crash()

    def ask(self, name: str, work: Callable[[Node], Awaitable[None]]) -> None:
        """Let a client of the process do something, if the process is open."""
        node = self.nodes.get(name)
        if node is None or node.clients is None:
            self.say(name, "is not open")
        else:
            node.start_soon(node.clients, work, node)

    def keep_removed(self, files: SimulatedFiles, operation: str, path: Path) -> None:
        """Keep what a log file held that is removed now. The judge reads the whole log."""
        if operation == "remove" and path.suffix in {".log", ".closed-log"} and path.parent == DIRECTORY:
            found = self.disk._disk.directories[DIRECTORY].entries.get(path.name)
            if found is not None:
                self.removed[path.name] = bytes(found.content)

    # -- what they say

    def say(self, name: str, text: str) -> None:
        """Add a line of a process, or "" for the cluster's own. Not again if it is the last one."""
        if not self._lines or self._lines[-1][1:] != (name, text):
            self._lines.append((trio.current_time(), name, text))

    def heard(self) -> list[str]:
        """What was said since the last call, with the time since then if that is much."""
        lines, self._lines = self._lines, []
        since, self._heard_at = self._heard_at, trio.current_time()
        return [
            f"{name}{f' +{at - since:.1f}s' if at - since >= SHOWN_SECONDS_MIN else ''}: {text}"
            for at, name, text in lines
        ]

    def watched(self, node: Node, prefix: str) -> Watched:
        """A new watch of a process."""
        watched = Watched(node.name, prefix)
        self.history.watched.append(watched)
        return watched

    def _heard_from(self, _logger: WrappedLogger, level: str, event: EventDict) -> EventDict:
        node = PROCESS.get()
        if isinstance(node, Node) and not node.has_ended and level != "debug":
            node.say(_text_of(event))
        raise structlog.DropEvent


def _text_of(event: EventDict) -> str:
    text = event.pop("event")
    if text == "the role in the metadata store changes":
        return f"{event['before']} -> {event['role']}: {event['reason']}"
    return " ".join([text, *(f"{name}={value}" for name, value in event.items())])


def _leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
