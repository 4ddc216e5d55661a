"""Several SharedStores on one simulated disk, joined by streams in memory.

async with brokers() as them:
    first, second = await them.start("b1"), await them.start("b2")
    them.files["b1"].stop()             # as by SIGSTOP: its disk and its connections stand still
    them.lost.add(("b1", "b2"))         # what b1 sends to b2 vanishes, and nobody is told
    await them.kill("b1")               # as by SIGKILL
    await them.cut("b2")                # its connections break off, until `mend`
    await them.close("b2")              # a clean end
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from random import Random
from typing import Final

import trio
from trio.testing import memory_stream_pair

from storage.metadata.cluster.reign_snapshots import SNAPSHOT_LOG_BYTES
from storage.metadata.cluster.roles import Role
from storage.metadata.cluster.shared_store import SharedStore
from tests.support.disk import SimulatedFiles
from tests.support.metadata_log import DATA
from tests.support.stepped_files import SteppedFiles

TIMEOUT: Final = 10.0


class _HeldStream(trio.abc.Stream):
    """One end of a connection, which belongs to a process that may be stopped."""

    def __init__(self, stream: trio.abc.Stream, is_lost: Callable[[], bool], files: SimulatedFiles) -> None:
        self._stream = stream
        self._files = files
        self._is_lost = is_lost

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """See `SendStream`."""
        await self._files.run(int)
        if not self._is_lost():
            await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """See `SendStream`."""
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """See `ReceiveStream`."""
        data = await self._stream.receive_some(max_bytes)
        await self._files.run(int)
        return data

    async def aclose(self) -> None:
        """See `AsyncResource`."""
        await self._stream.aclose()


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts what others connect in memory."""

    def __init__(self, files: SimulatedFiles) -> None:
        self._files = files
        self._send, self._receive = trio.open_memory_channel[tuple[trio.abc.Stream, Callable[[], bool]]](100)
        self.accepted: list[trio.abc.Stream] = []

    async def accept(self) -> trio.abc.Stream:
        """The next connection."""
        stream = _HeldStream(*await self._receive.receive(), self._files)
        self.accepted.append(stream)
        return stream

    def connect(self, is_lost: Callable[[], bool]) -> trio.abc.Stream:
        """A new connection; the caller's end. `is_lost` says whether what the listener's end sends vanishes."""
        near, far = memory_stream_pair()
        try:
            self._send.send_nowait((far, is_lost))
        except (trio.BrokenResourceError, trio.WouldBlock) as refused:
            raise ConnectionRefusedError from refused
        return near

    async def aclose(self) -> None:
        """Refuse connections from now on."""
        self._receive.close()
        await trio.lowlevel.checkpoint()


class Brokers:
    """See the module's docstring."""

    def __init__(
        self, nursery: trio.Nursery, *, seed: int, timeout: float, stepped: bool, snapshot_log_bytes: int
    ) -> None:
        self.disk = SimulatedFiles(seed=seed)
        self.files: dict[str, SimulatedFiles] = {}
        """Each process's view of the disk."""
        self.stores: dict[str, SharedStore] = {}
        self.is_cut: set[str] = set()
        """Brokers that can connect to nobody."""
        self.lost: set[tuple[str, str]] = set()
        """(from, to): what that broker sends to this one vanishes."""
        self._listeners: dict[str, MemoryListener] = {}
        self._connections: dict[str, list[trio.abc.Stream]] = {}
        self._closing: dict[str, trio.Event] = {}
        self._owners: dict[str, trio.CancelScope] = {}
        self._clean_up: dict[str, Callable[[], Awaitable[None]]] = {}
        self._closed: dict[str, trio.Event] = {}
        self._nursery = nursery
        self._random = Random(seed)
        self._timeout = timeout
        self._stepped = stepped
        self._snapshot_log_bytes = snapshot_log_bytes

    async def start(self, name: str) -> SharedStore:
        """Start the store of a process."""
        store: SharedStore = await self._nursery.start(self._run, name)
        return store

    async def close(self, name: str) -> None:
        """Close a store as a stop of its process does."""
        self._closing[name].set()
        await self._closed[name].wait()

    async def cancel(self, name: str, clean_up: Callable[[], Awaitable[None]]) -> None:
        """Cancel the owner of a store, which then cleans up, shielded. Return when the store is closed."""
        self._clean_up[name] = clean_up
        self._owners[name].cancel()
        await self._closed[name].wait()

    async def kill(self, name: str) -> None:
        """As SIGKILL: nothing of it reaches the disk or another process any more, and its locks are free.

        Its tasks go on, and find at the end of the test that they were deposed.
        """
        self.files[name].die()
        self.is_cut.add(name)
        for stream in [*self._connections.pop(name, []), *self._listeners[name].accepted]:
            await trio.aclose_forcefully(stream)

    async def cut(self, name: str) -> None:
        """Break off the connections that this broker made. It cannot connect again until `mend`."""
        self.is_cut.add(name)
        for stream in self._connections.pop(name, []):
            await trio.aclose_forcefully(stream)

    def mend(self, name: str) -> None:
        """Let it connect again."""
        self.is_cut.discard(name)

    async def until(self, name: str, *roles: Role) -> None:
        """Wait until a process plays one of these roles."""
        store = self.stores[name]
        with trio.fail_after(10 * self._timeout):
            while store.role not in roles:
                await store.player.moved.park()

    async def controller(self, *names: str) -> SharedStore:
        """Wait until one of these processes is the controller."""
        with trio.fail_after(10 * self._timeout):
            while True:
                for name in names:
                    if self.stores[name].role is Role.LEADING:
                        return self.stores[name]
                await trio.sleep(0.01)

    async def _run(self, name: str, *, task_status: trio.TaskStatus[SharedStore]) -> None:
        files = self.files[name] = SteppedFiles(self.disk) if self._stepped else self.disk.process()
        listener = self._listeners[name] = MemoryListener(files)
        self._closing[name] = trio.Event()
        closed = self._closed[name] = trio.Event()

        async def connect(address: str) -> trio.abc.Stream:
            # A socket's answer may arrive in the step in which the caller is cancelled.
            await trio.lowlevel.cancel_shielded_checkpoint()
            if {name, address} & self.is_cut:
                raise ConnectionRefusedError(f"{name} does not reach {address}")
            near = self._listeners[address].connect(lambda: (address, name) in self.lost)
            stream = _HeldStream(near, lambda: (name, address) in self.lost, files)
            self._connections.setdefault(name, []).append(stream)
            return stream

        with trio.CancelScope() as self._owners[name]:
            async with SharedStore.open_shared(
                files,
                DATA,
                [listener],
                broker=name,
                address=name,
                connect=connect,
                timeout=self._timeout,
                random=Random(self._random.random()),
                snapshot_log_bytes=self._snapshot_log_bytes,
            ) as store:
                self.stores[name] = store
                task_status.started(store)
                try:
                    await self._closing[name].wait()
                finally:
                    if name in self._clean_up:
                        with trio.CancelScope(shield=True):
                            await self._clean_up[name]()
        closed.set()

    def resume_all(self) -> None:
        """Let every process go on."""
        for files in self.files.values():
            files.resume()

    async def close_all(self) -> None:
        """Close every store."""
        self.is_cut.clear()
        self.resume_all()
        for name in self.stores:
            await self.close(name)


@asynccontextmanager
async def brokers(
    *, seed: int = 1, timeout: float = TIMEOUT, stepped: bool = False, snapshot_log_bytes: int = SNAPSHOT_LOG_BYTES
) -> AsyncIterator[Brokers]:
    """No process yet. Leaving the context closes all that were started.

    `stepped` processes can be stopped in the middle of a blocking call (`SteppedFiles.at`).
    """
    async with trio.open_nursery() as nursery:
        them = Brokers(nursery, seed=seed, timeout=timeout, stepped=stepped, snapshot_log_bytes=snapshot_log_bytes)
        try:
            yield them
        finally:
            them.resume_all()
        await them.close_all()
