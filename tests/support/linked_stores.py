"""Followers joined to a controller over streams in memory, whose links a test cuts, stops, or makes one-way.

async with LinkNetwork(store.reign).running() as network, network.follower("b2") as store:
    network.cut("b2")                                   # it connects again soon
    network.lines["b2"].to_follower.is_lost = True      # what goes there vanishes, and nobody is told

A `Line` is one direction of all connections of a broker. It can lose or hold up what is sent, or cut the connection
after a number of frames.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio
from trio.testing import memory_stream_pair

from storage.metadata.cluster.fields import LinkError
from storage.metadata.cluster.follower_store import FollowerStore
from storage.metadata.cluster.following import LinkRefused
from storage.metadata.cluster.frames import Frame, Frames
from storage.metadata.cluster.link_streams import LinkLost
from storage.metadata.cluster.received_log import CannotFollow
from storage.metadata.cluster.reign import Reign
from storage.metadata.cluster.serving import LinkServer

CLUSTER: Final = "tide"
TIMEOUT: Final = 10.0
RETRY_SECONDS: Final = 0.05
"""How long a follower waits before it connects again."""

StreamPair = tuple[trio.abc.Stream, trio.abc.Stream]


@dataclass
class Line:
    """One direction between a broker and the controller."""

    is_lost: bool = False
    """What is sent vanishes."""
    delay: float = 0
    """How long each sending takes, in seconds."""
    cuts: list[int] = field(default_factory=list)
    """The connection is cut behind this many frames, and again behind so many more."""
    seen: list[Frame] = field(default_factory=list)
    """Every frame that was sent, lost ones too."""
    gate: trio.Event | None = None
    """Sending waits for it, as on a connection whose other end reads nothing."""


class _Wire(trio.abc.Stream):
    """One end of a connection, whose sends go through a line."""

    def __init__(self, stream: trio.abc.Stream, line: Line, cut: Callable[[], None]) -> None:
        self._stream = stream
        self._line = line
        self._frames = Frames()
        self._cut = cut

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        line = self._line
        if line.gate is not None:
            await line.gate.wait()
        await trio.sleep(line.delay)
        self._frames.feed(data)
        while (frame := self._frames.next_frame()) is not None:
            line.seen.append(frame)
            if line.cuts:
                line.cuts[0] -= 1
                if line.cuts[0] < 0:
                    del line.cuts[0]
                    self._cut()
                    await trio.lowlevel.checkpoint()
                    raise trio.BrokenResourceError
        if line.is_lost:
            await trio.lowlevel.checkpoint()
            return
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def aclose(self) -> None:
        await self._stream.aclose()


def _set_event() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


@dataclass
class Lines:
    """Both directions of a broker."""

    to_follower: Line = field(default_factory=Line)
    to_controller: Line = field(default_factory=Line)
    opened: trio.Event = field(default_factory=_set_event)
    """The broker gets no connection before it is set."""
    scope: trio.CancelScope | None = None
    """Around the present connection."""


class LinkedStore(FollowerStore):
    """A follower that is given its links, and never leads."""

    @classmethod
    @asynccontextmanager
    async def open(cls, broker: str, *, timeout: float, random: Random) -> AsyncIterator["LinkedStore"]:
        """Without a link, for as long as the context is open."""
        store = cls(broker=broker, timeout=timeout, random=random)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store._end_overdue_sessions)
            try:
                yield store
            finally:
                await store._close()
                nursery.cancel_scope.cancel()

    async def follow(
        self, stream: trio.abc.Stream, epoch: int, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve one link. See `Following.follow`. After CannotFollow, this store has ended."""
        try:
            await self._following.follow(stream, epoch, CLUSTER, task_status=task_status)
        except CannotFollow as error:
            self._end(error)
            raise


class LinkNetwork:
    """See the module's docstring."""

    def __init__(
        self,
        reign: Reign,
        *,
        timeout: float = TIMEOUT,
        seed: int = 0,
        pair: Callable[[], StreamPair] = memory_stream_pair,
    ) -> None:
        self.server = LinkServer(reign, cluster=CLUSTER, timeout=timeout)
        self.lines: dict[str, Lines] = {}
        self.ended: list[Exception] = []
        """Why links have ended."""
        self.epoch = reign.epoch
        self._another_ended = trio.lowlevel.ParkingLot()
        self._timeout = timeout
        self._random = Random(seed)
        self._pair = pair
        self._nursery: trio.Nursery

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LinkNetwork"]:
        """Serve until the context is left. Close followers before."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self.server.run)
            try:
                yield self
            finally:
                nursery.cancel_scope.cancel()

    def lines_of(self, broker: str) -> Lines:
        """The lines of a broker that may not have connected yet."""
        return self.lines.setdefault(broker, Lines())

    @asynccontextmanager
    async def follower(self, broker: str = "b2") -> AsyncIterator[LinkedStore]:
        """A follower's store, which connects again whenever its link has ended."""
        lines = self.lines_of(broker)
        random = Random(self._random.random())
        async with trio.open_nursery() as nursery:
            async with LinkedStore.open(broker, timeout=self._timeout, random=random) as store:
                await nursery.start(self._keep_linked, store, lines)
                yield store
            nursery.cancel_scope.cancel()

    async def _keep_linked(
        self, store: LinkedStore, lines: Lines, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        while True:
            await lines.opened.wait()
            with trio.CancelScope() as lines.scope:
                status = trio.TASK_STATUS_IGNORED if store.statistics().extra["links"] else task_status
                try:
                    await store.follow(self.connect(lines), self.epoch, task_status=status)
                except (LinkLost, LinkError, LinkRefused) as error:
                    self.ended.append(error)
                    self._another_ended.unpark_all()
            await trio.sleep(RETRY_SECONDS)

    async def until_ended(self, count: int) -> None:
        """Wait until so many links have ended."""
        while len(self.ended) < count:
            await self._another_ended.park()

    async def fail_over(self, reign: Reign) -> None:
        """Let another process lead. Followers that connect from now on get there; present links stay as they are."""
        self.server = LinkServer(reign, cluster=CLUSTER, timeout=self._timeout)
        self.epoch = reign.epoch
        await self._nursery.start(self.server.run)

    def connect(self, lines: Lines) -> trio.abc.Stream:
        """A new connection to the controller; the follower's end."""
        near, far = self._pair()
        scope = trio.CancelScope()

        async def serve(server: LinkServer) -> None:
            with scope:
                await server.serve(_Wire(far, lines.to_follower, scope.cancel))

        def cut() -> None:
            assert lines.scope is not None
            lines.scope.cancel()

        self._nursery.start_soon(serve, self.server)
        return _Wire(near, lines.to_controller, cut)

    def close(self, broker: str) -> None:
        """Cut the broker's connection, and let it have no other one until `lines_of(broker).opened` is set."""
        self.lines[broker].opened = trio.Event()
        self.cut(broker)

    def cut(self, broker: str) -> None:
        """Cut the broker's connection. Both ends notice."""
        scope = self.lines[broker].scope
        assert scope is not None
        scope.cancel()
